"""The rules of stages, one by one: what is passed on, by position, by kernels' names, by optimizers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from facts import us, warning_codes

import stepscope.facts.annotate as annotation
from stepscope.facts.annotate import annotate, find_stages
from stepscope.facts.annotate.links.launches import link_launches
from stepscope.facts.annotate.modules.matching.matching import forward_rows, names_inside, recomputed_rows
from stepscope.facts.annotate.range_names import CODE, is_layer
from stepscope.facts.annotate.stages import optimizers, stage_by_position, stages
from stepscope.facts.annotate.stages.optimizers import (
    OptimizerCalls,
    name_optimizers,
    optimizer_calls,
    split_by_optimizer,
)
from stepscope.facts.annotate.stages.stage_by_position import (
    mark_eval_calls,
    split_micro_batches,
    unmarked_forward,
    work_launched,
)
from stepscope.testing import drawn_trace
from stepscope.trace.schema import INFERENCE_STAGES, MEMORY, STAGE_RUNS, STAGES
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

NONE = -1
LETTERS = {".": NONE, "f": CODE["forward"], "l": CODE["loss"], "b": CODE["backward"], "u": CODE["optimizer"]}
LETTERS |= {"o": CODE["other"], "z": CODE["zero_grad"], "e": CODE["evaluation"], "t": CODE["transfer"]}
LETTERS |= {"d": CODE["data_loading"]}


def coded(row: str) -> np.ndarray:
    return np.array([LETTERS[letter] for letter in row], np.int8)


def drawn(*lines: str) -> Trace:
    return drawn_trace("\n".join(lines))


# -- passed on to what is inside

ALLOWED = {
    "forward": {"data_loading", "transfer", "loss", "zero_grad", "backward", "optimizer", *INFERENCE_STAGES},
    "loss": {"backward"},
    "backward": {"optimizer"},
    "optimizer": {"forward", "loss", "zero_grad", "backward"},
    "other": {*STAGES},
}


@pytest.mark.parametrize("outer", STAGES)
def test_stages_that_stay_themselves_inside_another(outer: str) -> None:
    events = drawn("main | 0 9 | a", "main | 1 5 | b").events
    for inner in STAGES:
        stage, again = stages._inherit_stages(events, np.array([CODE[outer], CODE[inner]], np.int8))
        kept = inner if inner in ALLOWED.get(outer, ()) else outer
        assert [STAGES[code] for code in stage] == [outer, kept]
        assert again.tolist() == [False, (outer, inner) == ("backward", "forward")]
    alone, _ = stages._inherit_stages(events, np.array([NONE, CODE[outer]], np.int8))
    assert alone.tolist() == [NONE, CODE[outer]]


def test_a_range_named_a_loss_around_layers_has_no_stage() -> None:
    for inside, outside, is_around in (
        ("aten::linear", "aten::mean", True),
        ("Torch-Compiled Region: 0/0", "aten::mean", True),
        ("CompiledFunction", "aten::mean", True),
        ("aten::sub", "aten::mean", False),
        ("aten::linear", "aten::linear", False),  # another model
    ):
        events = drawn(
            "main | 0 20 | my_loss | cat=annotation", f"main | 1 9 | {inside}", f"main | 30 40 | {outside}"
        ).events
        own = np.array([CODE["loss"], NONE, NONE], np.int8)
        assert stages._around_models(events, own).tolist() == [is_around, False, False]


@pytest.mark.parametrize(
    ("main", "other", "backward"), [("..bb", ".b", True), ("..bb", "..", False), ("....", ".b", False)]
)
def test_a_thread_that_runs_mostly_backward_is_all_backward(main: str, other: str, backward: bool) -> None:
    lines = [f"main | {10 * n} {10 * n + 10} | aten::m{n}" for n in range(4)]
    lines += [f"other | {10 * n} {10 * n + 10 + 2 * n} | aten::o{n}" for n in range(2)]
    trace = drawn(*lines)
    names = list(trace.events.text("name"))
    given = {f"aten::m{n}": letter for n, letter in enumerate(main)} | {
        f"aten::o{n}": one for n, one in enumerate(other)
    }
    stage = np.array([LETTERS[given[name or ""]] for name in names], np.int8)
    found = stages._fill_backward_threads(trace, stage)
    whole = other == ".b"
    assert found[names.index("aten::o0")] == (CODE["backward"] if whole else NONE)
    assert found[names.index("aten::m0")] == NONE


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("pt_autograd_0", True), ("thread 7 pt_autograd_12 x", True), ("my_pt_autograd_0", False)],
)
def test_threads_of_autograd_are_known_by_name(name: str, is_one: bool) -> None:
    trace = drawn("main | 0 90 | aten::x", "other | 5 9 | cudaLaunchKernel")
    trace = trace.with_table(trace["tracks"].with_columns(name=["main", name]))
    found = stages._fill_backward_threads(trace, np.full(2, NONE, np.int8))
    assert found.tolist() == [NONE, CODE["backward"] if is_one else NONE]


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (["softmax_forward 60", "gemm_bwd 30", "copy 10"], "f b ."),
        (["softmax_forward 30", "gemm_bwd 20", "copy 50"], ". . ."),  # most are not named
        (["weight_gemm 60", "dgrad_x 40"], "b b"),
        (["my_optimizer_step 10", "gemm_fwd 90"], "u f"),
        (["weighted 60", "fwd 70"], ". f"),
        (["dataloader.weights 20", "fwd 70"], "d f"),
    ],
)
def test_kernels_tell_passes_where_nothing_else_does(names: list[str], found: str) -> None:
    lines, now = [], 0
    for each in names:
        name, length = each.split()
        lines.append(f"stream 7 | {now} {now + int(length)} | {name}")
        now += int(length)
    trace = drawn(*lines).with_events(step=[0] * len(names))
    given = np.full(len(names), NONE, np.int8)
    assert stages._by_kernel_names(trace, given).tolist() == coded(found.replace(" ", "")).tolist()
    known = given.copy()
    known[0] = CODE["forward"]
    assert stages._by_kernel_names(trace, known).tolist() == known.tolist()


def test_collectives_of_other_threads_have_the_stage_of_the_call_before() -> None:
    trace = drawn(
        "main | 0 5 | c10d::allreduce_",
        "gloo | 2 9 | gloo:all_reduce | cat=communication",
        "main | 10 15 | c10d::allgather_",
        "gloo | 12 19 | gloo:all_gather | cat=communication",
        "early | 0 1 | gloo:early | cat=communication",
    )
    names = list(trace.events.text("name"))
    stage = np.array(
        [
            {"c10d::allreduce_": CODE["backward"], "c10d::allgather_": CODE["forward"]}.get(name or "", NONE)
            for name in names
        ],
        np.int8,
    )
    found = stages._as_called(trace, stage, np.ones(5, np.bool_))
    by_name = {name: int(code) for name, code in zip(names, found, strict=True)}
    assert by_name["gloo:all_reduce"] == CODE["backward"]
    assert by_name["gloo:all_gather"] == CODE["forward"]


@pytest.mark.parametrize(
    ("lines", "is_lazy"),
    [
        ([], True),
        (["main | 12 14 | synLaunch | cat=runtime"], False),  # forward calls the device
        (["main | 32 34 | synLaunch | cat=runtime"], False),  # so does backward
        (["main | 80 90 | other | cat=runtime"], True),
    ],
)
def test_a_device_that_runs_whole_steps_at_one_call_is_lazy(lines: list[str], is_lazy: bool) -> None:
    trace = link_launches(
        drawn(
            *("main | 10 20 | aten::linear | seq=1", "main | 30 40 | AddmmBackward0 | seq=1 fwd=1"),
            *("main | 60 70 | cudaLaunchKernel | corr=1", "stream 7 | 71 79 | k | corr=1"),
            *lines,
        )
    )
    stage = np.where(trace.events.text("name").mask("AddmmBackward0"), CODE["backward"], NONE).astype(np.int8)
    inside = np.flatnonzero(
        (trace.events["parent"] >= 0) & (stage[trace.events["parent"]] == CODE["backward"])
    )
    stage[inside] = CODE["backward"]
    assert stages._is_lazy(trace, stage) is is_lazy
    assert not stages._is_lazy(trace, np.full(len(stage), NONE, np.int8))


# -- by position


@pytest.mark.parametrize(
    ("is_one", "names"),
    [
        (True, "linear addmm taddmm mm bmm matmul baddbmm conv2d conv_transpose1d _convolution embedding"),
        (True, "embedding_bag lstm gru batch_norm native_layer_norm cudnn_batch_norm group_norm rms_norm"),
        (True, "scaled_dot_product_attention scaled_mm instance_norm"),
        (False, "mean add relu softmax lstm_cell norm mm_ linears xaddmm"),
    ],
)
def test_operators_of_layers(is_one: bool, names: str) -> None:
    assert {name: is_layer(f"aten::{name}") for name in names.split()} == dict.fromkeys(names.split(), is_one)
    assert not is_layer("linear")


def rows_of(row: str, options: Sequence[str] = ()) -> Trace:
    """Operators one after the other, each of 10 us."""
    extra = [*options, *[""] * len(row)]
    return drawn(*(f"main | {10 * n} {10 * n + 10} | aten::x{n} | n={n} {extra[n]}" for n in range(len(row))))


@pytest.mark.parametrize(
    ("row", "forward", "parts"),
    [
        ("ffbbffbb", "11001100", ["ffbb", "ffbb"]),
        ("ffbbuffbb", "110001100", ["ffbbu", "ffbb"]),
        ("ffbb..fbb", "110000100", ["ffbb", "..fbb"]),
        ("ffbbff", "110011", ["ffbbff"]),  # no more backward follows
        ("bbffbb", "001100", ["bb", "ffbb"]),
        ("ffll", "1111", ["ffll"]),
        ("fbfbfb", "101010", ["fb", "fb", "fb"]),
    ],
)
def test_micro_batches_begin_with_forward_work_after_backward(
    row: str, forward: str, parts: list[str]
) -> None:
    events = rows_of(row).events
    found = split_micro_batches(
        events, np.arange(len(row)), coded(row), np.array([one == "1" for one in forward])
    )
    assert [row[part] for part in found] == parts


@pytest.mark.parametrize(
    ("lines", "given", "found"),
    [
        (["a 0 10", "a 20 30 r"], "f.f.", "o.f."),
        (["a 0 10", "b 20 30 r"], "f.f.", "f.f."),  # a model that never has gradients
        (["a 0 10 r", "a 20 30 r"], "f.f.", "f.f."),
        (["a 0 10", "a 10 20 r"], "f.f.", "o.f."),  # at once
        (["a 0 10", "a 20 30 r", "a 40 50"], "f.f.f.", "o.f.o."),
    ],
)
def test_calls_without_gradients_of_a_model_that_trains_evaluate(
    lines: list[str], given: str, found: str
) -> None:
    text = []
    for line in lines:
        name, start, end, *recorded = line.split()
        text.append(f"main | {start} {end} | {name} | cat=annotation")
        text.append(f"main | {int(start) + 1} {int(end) - 1} | aten::mm | {'seq=1' if recorded else 'n=1'}")
    events = drawn(*text).events
    loop = np.ones(len(given), np.bool_)
    stage = mark_eval_calls(events, np.arange(len(given)), coded(given), loop)
    assert stage.tolist() == coded(found).tolist()
    assert (
        mark_eval_calls(events, np.arange(len(given)), coded(given), ~loop).tolist() == coded(given).tolist()
    )


def test_a_range_that_is_no_forward_is_no_call() -> None:
    events = drawn(
        *("main | 0 10 | a | cat=annotation", "main | 1 9 | aten::mm", "main | 12 14 | aten::nll_loss"),
        *("main | 20 30 | a | cat=annotation", "main | 21 29 | aten::mm | seq=1"),
    ).events
    given = coded("..lf.")
    assert mark_eval_calls(events, np.arange(5), given, np.ones(5, np.bool_)).tolist() == given.tolist()


def test_a_range_around_backward_begins_after_all_that_comes_before_it() -> None:
    events = drawn(
        *(
            "main | 0 30 | early | cat=annotation",
            "main | 0 5 | aten::sub",
            "main | 6 30 | late | cat=annotation",
        ),
        *("main | 10 20 | XBackward0", "main | 40 50 | update"),
    ).events
    known = stage_by_position._KnownStages(events, np.arange(5), coded("...bu"))
    after = np.array([True, True, True, False, False])
    found = stage_by_position._around_backward(known, after, known.first("backward"))
    assert found.tolist() == [False, False, True, False, False]
    assert (known.first("backward"), known.last("backward"), known.first("loss"), known.last("loss")) == (
        *(10_000, 20_000, np.iinfo(np.int64).max, -1),
    )
    assert known.has("optimizer")
    assert not known.has("loss")


def test_ranges_that_touch_are_apart_and_nested_ones_are_not() -> None:
    events = drawn(
        *(f"main | {a} {b} | r{a} | cat=annotation" for a, b in ((0, 10), (2, 8), (10, 20), (12, 20)))
    ).events
    found = stage_by_position._outermost(events, np.arange(4), np.ones(4, np.bool_))
    assert found.tolist() == [0, 2]
    assert stage_by_position._outermost(
        events, np.arange(4), np.array([False, True, False, True])
    ).tolist() == [1, 3]
    assert stage_by_position._outermost(events, np.arange(4), np.zeros(4, np.bool_)).tolist() == []


def test_gradients_between_backward_and_the_update_are_processed() -> None:
    for row, found in (("fbb..u.", [3, 4]), ("fbb..", []), ("f..u.", []), ("ub..u", [2, 3])):
        inside = stage_by_position._before_update(rows_of(row).events, np.arange(len(row)), coded(row))
        assert np.flatnonzero(inside).tolist() == found


def test_a_run_is_forward_from_its_first_operator_to_its_last() -> None:
    events = rows_of("........").events
    chosen = np.array([one == "1" for one in "01010001"])
    unassigned = np.array([one == "1" for one in "11111011"])
    found = stage_by_position._between(events, np.arange(8), chosen & unassigned, unassigned)
    assert np.flatnonzero(found).tolist() == [1, 2, 3, 7]
    none = np.zeros(0, np.bool_)
    assert stage_by_position._between(events, np.arange(0), none, none).tolist() == []


@pytest.mark.parametrize(
    ("options", "row", "found"),
    [
        (["seq=1", "", "seq=2", ""], "....", [0, 1, 2]),
        (["", "", "", ""], "....", []),
        (["seq=1", "", "", "seq=2"], "f..u", []),
    ],
)
def test_layers_that_autograd_recorded_are_forward(options: list[str], row: str, found: list[int]) -> None:
    trace = drawn(
        *(
            f"main | {10 * n} {10 * n + 10} | aten::linear | n={n} {option}"
            for n, option in enumerate(options)
        )
    )
    stage = coded(row)
    marked = unmarked_forward(trace.events, np.arange(4), stage, stage < 0)
    if not any(options):
        assert marked.all()  # a file without numbers
    else:
        assert np.flatnonzero(marked).tolist() == found


def test_what_calls_launch_is_told_apart() -> None:
    trace = link_launches(
        drawn(
            *("main | 0 9 | aten::to", "main | 1 2 | cudaMemcpyAsync | corr=1"),
            *("main | 10 19 | aten::mm", "main | 11 12 | cudaLaunchKernel | corr=2"),
            *("main | 20 29 | aten::item", "main | 21 28 | cudaStreamSynchronize"),
            *("main | 30 39 | aten::is_nonzero", "main | 31 38 | cudaStreamSynchronize"),
            *("main | 40 49 | aten::cpu", "main | 41 42 | cudaMemcpyAsync | corr=3"),
            *(
                "main | 50 59 | aten::all",
                "main | 51 52 | cudaLaunchKernel | corr=4",
                "main | 53 54 | cudaStreamSynchronize",
            ),
            *("stream 7 | 3 4 | Memcpy HtoD | corr=1", "stream 7 | 14 15 | k | corr=2"),
            *(
                "stream 7 | 43 44 | Memcpy DtoH | corr=3",
                "stream 7 | 53 54 | nccl | corr=4 cat=communication",
            ),
        )
    )
    found = work_launched(trace, True)
    names = trace.events.text("name")

    def named(mask: np.ndarray) -> list[str]:
        return [
            (names[row] or "").removeprefix("aten::")
            for row in np.flatnonzero(mask)
            if (names[row] or "").startswith("aten")
        ]

    assert named(found.copies_only) == ["to"]
    assert named(found.waits_only) == ["item"]
    assert named(found.computes) == ["mm", "all"]
    assert found.has_optimizer


# -- optimizers

CALLS = OptimizerCalls(
    np.array([10, 20, 50]),
    np.array([20, 30, 60]),
    np.array([0, 0, 1], np.int32),
    np.array([0, 1, 0]),
    ["a", "b"],
)


def test_runs_of_two_optimizers_are_two() -> None:
    columns = (np.array([0, 0, 1], np.int32), np.array([0, 10, 40]), np.array([10, 35, 60]))
    stage = np.array([CODE["forward"], CODE["optimizer"], CODE["optimizer"]])
    found = split_by_optimizer(CALLS, *columns, stage)
    assert [column.tolist() for column in found[:3]] == [[0, 0, 0, 1], [0, 10, 20, 40], [10, 20, 35, 60]]
    assert found[3].tolist() == [CODE["forward"], *[CODE["optimizer"]] * 3]
    same = split_by_optimizer(CALLS._replace(name=np.array([0, 0, 0])), *columns, stage)
    assert [column.tolist() for column in same[:3]] == [column.tolist() for column in columns]
    forward = split_by_optimizer(CALLS, *columns, np.full(3, CODE["forward"]))
    assert forward[1].tolist() == [0, 10, 40]


def test_runs_are_named_after_the_optimizer_that_they_lead_to() -> None:
    rows = [
        *(
            (0, "data_loading", 0),
            (0, "forward", 2),
            (0, "zero_grad", 4),
            (0, "backward", 6),
            (0, "optimizer", 10),
        ),
        *(
            (0, "optimizer", 20),
            (0, "forward", 30),
            (1, "forward", 40),
            (1, "loss", 45),
            (1, "optimizer", 50),
            (1, "other", 60),
        ),
    ]
    step, stage, start = zip(*rows, strict=True)
    runs = Table(STAGE_RUNS, {"step": step, "stage": stage, "start_ns": start})
    assert list(name_optimizers(CALLS, runs).text("optimizer")) == [
        *(None, "a, b", "a, b", "a, b", "a"),
        *("b", None, "a", "a", "a", None),
    ]
    none = CALLS._replace(starts=np.zeros(0, np.int64))
    assert name_optimizers(none, runs) is runs


def test_calls_of_optimizers_have_the_users_name_or_their_class() -> None:
    by_class = [
        "main | 0 9 | Optimizer.step#Adam.step",
        "main | 20 29 | Optimizer.step#SGD.step",
        "main | 21 25 | Optimizer.step#Adam.step",
    ]
    trace = drawn(*by_class).with_events(step=[0, 1, 1])
    found = optimizer_calls(trace, np.ones(3, np.bool_))
    assert ([found.names[name] for name in found.name], found.step.tolist()) == (["Adam", "SGD"], [0, 1])
    assert ((found.starts // 1000).tolist(), (found.ends // 1000).tolist()) == ([0, 20], [9, 29])
    named = drawn(*by_class, "main | 1 8 | stepscope.optimizer: critic").with_events(step=[0] * 4)
    found = optimizer_calls(named, np.ones(4, np.bool_))
    assert [found.names[name] for name in found.name] == ["critic"]
    assert len(optimizer_calls(trace.with_events(step=[-1] * 3), np.ones(3, np.bool_)).starts) == 0


def test_between_two_evaluations_an_optimizer_works() -> None:
    start, end = np.array([0, 25, 45, 65, 85]), np.array([5, 30, 50, 70, 90])
    found = optimizers._between_calls(start, end, np.array([40, 20]), np.array([28, 66]))
    # Before backward; with forward since; after the second backward; with forward inside; after that.
    assert found.tolist() == [False, False, True, False, False]


# -- sequences of operators


def test_the_operators_of_each_forward_pass_are_the_outermost() -> None:
    trace = link_launches(
        drawn(
            *(
                "main | 0 9 | wrapper",
                "main | 1 4 | aten::mm",
                "main | 2 3 | aten::t",
                "main | 5 8 | aten::add",
            ),
            *("main | 10 19 | custom", "main | 11 18 | aten::mm", "main | 20 29 | aten::relu"),
            *(
                "main | 30 31 | cudaLaunchKernel | corr=1",
                "main | 40 49 | aten::mm",
                "other | 0 9 | aten::sum",
            ),
            "stream 7 | 50 59 | k | corr=1",
        )
    )
    names = trace.events.text("name")
    step = np.where(names.mask("aten::relu"), 1, np.where(trace.events["start_ns"] >= 40_000, -1, 0))
    trace = trace.with_events(stage=Text.of(["forward"] * len(names)), step=step)
    found = forward_rows(trace, names.mask("custom", "aten::mm", "aten::add"))
    assert [[names[row] for row in rows] for rows in found] == [
        ["aten::mm", "aten::add", "custom", "cudaLaunchKernel"],
        ["aten::relu"],
    ]
    assert recomputed_rows(trace, names.mask("custom")) == []
    again = trace.with_events(recompute=names.mask("custom").astype(np.int8))
    assert [[names[row] for row in rows] for rows in recomputed_rows(again, names.mask("custom"))] == [
        ["custom"]
    ]


def test_names_inside_of_what_says_nothing_are_those_of_events_and_kernels() -> None:
    trace = link_launches(
        drawn(
            *(
                "main | 0 9 | opaque",
                "main | 1 4 | inner",
                "main | 5 6 | cudaLaunchKernel | corr=1",
                "main | 10 19 | other",
            ),
            "stream 7 | 20 29 | gemm | corr=1",
        )
    )
    names = trace.events.text("name")
    found = names_inside(trace, names.mask("opaque"))
    assert {row: {names.values[code] for code in codes} for row, codes in found.items()} == {
        0: {"inner", "cudaLaunchKernel", "gemm"}
    }


# -- all of it


def test_many_devices_are_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(annotation, "_MOST_DEVICES", 2)
    trace = drawn("main | 0 9 | aten::mm", *(f"stream {n} | 0 9 | k{n}" for n in range(4)))
    trace = trace.with_table(trace["tracks"].with_columns(device=[-1, 3, 5, 7, 9]))
    memory = Table(MEMORY, {"device": Text.of(["cpu", "cuda:0", "cuda:1", None])})
    found = annotation._with_few_devices(trace.with_table(memory))
    assert found["tracks"]["device"].tolist() == [-1, 3, 5, 5, 5]
    assert list(found["memory"].text("device")) == ["cpu", "cuda:0", "cuda:0", None]
    messages = [(row["code"], row["message"], row["count"]) for row in found["warnings"].rows()]
    assert messages == [
        ("many_devices", "the file names 4 devices; the last 3 are taken for one", 3),
        ("many_devices", "the file names 3 devices; the last 2 are taken for one", 2),
    ]
    few = trace.with_table(trace["tracks"].with_columns(device=[-1, 3, 5, 5, 3]))
    assert annotation._with_few_devices(few) is few


def test_stages_alone_are_those_of_all_facts() -> None:
    trace = drawn(
        *(
            "main | 0 100 | ProfilerStep#1",
            "main | 0 40 | aten::linear | seq=1",
            "main | 50 80 | AddmmBackward0 | seq=1 fwd=1",
        )
    )
    alone, whole = find_stages(trace), annotate(trace)
    for name in ("steps", "stages"):
        assert list(alone[name].rows()) == list(whole[name].rows())
    assert us(alone, "stages", "stage")
    empty = Trace({})
    assert find_stages(empty) is empty
    assert annotate(empty) is empty
    model = {"name": "net", "class": "Net"}
    assert annotate(empty, model).metadata.model == model
    assert warning_codes(whole) == {}
