"""Iterations of inference servers and of generating loops: prefill, decode, and both in one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable

import numpy as np
import pytest
from facts import of_events, us

from stepscope.facts.annotate import annotate
from stepscope.facts.annotate.steps import inference
from stepscope.facts.annotate.steps.inference import find_iterations, iteration_of, stages_by_iteration
from stepscope.facts.summary.report_facts import summarize
from stepscope.testing import drawn_trace
from stepscope.trace.missing_records import TIME_LEFT_OUT
from stepscope.trace.schema import ITERATIONS, STAGES
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("execute_context_2(1024)_generation_0(0)", ("prefill", 2, 1024, 0, 0)),
        ("execute_context_0(0)_generation_7(7)", ("decode", 0, 0, 7, 7)),
        ("execute_context_1(96)_generation_7(14)", ("prefill_decode", 1, 96, 7, 14)),
        ("execute_context_1(888_788544)_generation_0(0)", ("prefill", 1, 888, 0, 0)),
        (
            "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk55086sqsq32sqsk55086)",
            ("decode", 0, 0, 32, 32),
        ),
        ("execute_new_3_cached_0", ("prefill", 3, -1, 0, -1)),
        ("execute_new_1_cached_4", ("prefill_decode", 1, -1, 4, -1)),
        ("step[EXTEND bs=2 toks=4096]", ("prefill", 2, 4096, -1, -1)),
        ("step[DECODE bs=16]", ("decode", -1, -1, 16, -1)),
        ("step[DECODE bs=2 g_sqsq=2 g_sqsk=30 g_sk=30]", ("decode", -1, -1, 2, -1)),
        (
            "step[MIXED bs=3 c=1 g=2 c_sq=5 c_sk=8 c_sqsq=25 c_sqsk=40 g_sq=2 g_sk=20]",
            ("prefill_decode", 1, 5, 2, 2),
        ),
        ("step[MIXED bs=2]", ("prefill_decode", -1, -1, -1, -1)),
        (
            "[Executor] _forward_step 12: 1 ctx reqs, 700 ctx tokens, 31 gen reqs",
            ("prefill_decode", 1, 700, 31, -1),
        ),
        ("[Executor] _forward_step 13: 0 ctx reqs, 32 gen reqs", ("decode", 0, -1, 32, -1)),
        ("[Executor] _forward_step: 4 ctx reqs, 0 gen reqs", ("prefill", 4, -1, 0, -1)),
        ("prefill[bs=2 tok=16384]", ("prefill", 2, 16384, -1, -1)),
        ("eager_decode[bs=3 tok=3 ctx=[1, 2, 3]]", ("decode", -1, -1, 3, 3)),
        ("Prefill step", ("prefill", -1, -1, -1, -1)),
        ("decode_one_token", ("decode", -1, -1, -1, -1)),
    ],
)
def test_names_of_servers(name: str, expected: tuple[object, ...]) -> None:
    assert iteration_of(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "decoder",
        "decode_image",
        "prefill_cache_manager",
        "step[IDLE bs=0]",
        "execute_context_0(0)_generation_0(0)",
        "forward_decode_head",
    ],
)
def test_names_of_other_things(name: str) -> None:
    assert iteration_of(name) is None


@pytest.mark.parametrize(
    ("frame", "stage"),
    [
        ("sglang/srt/model_executor/model_runner.py(1151): forward_extend", "prefill"),
        ("/opt/sglang/srt/model_executor/model_runner.py(9): forward_decode", "decode"),
        ("text_generation_server/server.py(120): Prefill", "prefill"),
        ("text_generation_server/server.py(180): Decode", "decode"),
        ("gpt-fast/generate.py(61): prefill", "prefill"),
        ("generate.py(70): decode_one_token", "decode"),
    ],
)
def test_functions_of_servers(frame: str, stage: str) -> None:
    found = iteration_of(frame, function=True)
    assert found is not None
    assert found.stage == stage


# How a server names an iteration with prompts of some requests and tokens for others.
SERVERS: dict[str, Callable[[int, int, int], str]] = {
    "vLLM": lambda prompts, tokens, others: (
        f"execute_context_{prompts}({tokens})_generation_{others}({others})"
    ),
    "SGLang": lambda prompts, tokens, others: (
        f"step[MIXED bs={prompts + others} c={prompts} g={others} c_sq={tokens} g_sq={others}]"
        if prompts and others
        else f"step[EXTEND bs={prompts} toks={tokens}]"
        if prompts
        else f"step[DECODE bs={others}]"
    ),
    "TensorRT-LLM": lambda prompts, tokens, others: (
        f"[Executor] _forward_step 7: {prompts} ctx reqs, {tokens} ctx tokens, {others} gen reqs"
    ),
}


@pytest.mark.parametrize("server", SERVERS)
@pytest.mark.parametrize("seed", range(20))
def test_a_family_of_servers(server: str, seed: int) -> None:
    chance = random.Random(seed)
    lines, truth, at = [], [], 0
    for number in range(chance.randint(3, 12)):
        prompts, others = chance.choice([(0, 5), (3, 0), (2, 4), (1, 1), (0, 1)])
        tokens = prompts * chance.randint(2, 900)
        length, gap = chance.randint(20, 400), chance.randint(0, 30)
        lines += [
            f"main | {at} {at + length} | {SERVERS[server](prompts, tokens, others)} | cat=annotation",
            f"main | {at + 2} {at + 8} | aten::mm",
            f"main | {at + 3} {at + 5} | cudaLaunchKernel | corr={number}",
            f"stream 7 | {at + 9} {at + length + gap - 1} | gemm{number} | corr={number}",
        ]
        if gap > 6:
            lines += [f"main | {at + length + 1} {at + length + 5} | aten::argmax"]
        stage = "_".join(side for side, some in (("prefill", prompts), ("decode", others)) if some)
        truth.append((stage, at, at + length, gap, prompts, tokens))
        at += length + gap
    trace = annotate(drawn_trace("\n".join(lines)))
    assert us(trace, "iterations", "stage", "start_ns", "end_ns") == [one[:3] for one in truth]
    assert set(trace["steps"].text("evidence")) == {"iteration"}
    assert us(trace, "steps", "start_ns") == [(one[1],) for one in truth]
    events = trace.events
    kernels = np.flatnonzero(events.text("category").mask("kernel"))
    assert [events.text("stage")[row] for row in kernels] == [one[0] for one in truth]
    sampling = np.flatnonzero(events.text("name").mask("aten::argmax") & (events["step"] >= 0))
    assert {events.text("stage")[row] for row in sampling} <= {"other"}
    spent = dict.fromkeys(("prefill", "decode", "prefill_decode"), 0)
    for stage, start, end, *_ in truth:
        spent[stage] += end - start
    runs = trace["stages"]
    for stage, wanted in spent.items():
        assert runs["cpu_ns"][runs.text("stage").mask(stage)].sum() / 1000 == pytest.approx(wanted, rel=0.01)
    kinds = {kind.stage: kind for kind in summarize(trace).iterations}
    assert {stage: kind.count for stage, kind in kinds.items()} == {
        stage: sum(one[0] == stage for one in truth) for stage in {one[0] for one in truth}
    }
    for stage in kinds.keys() & {"prefill", "prefill_decode"}:
        tokens = [one[5] for one in truth if one[0] == stage]
        assert kinds[stage].prefill_tokens == pytest.approx(np.mean(tokens))


def test_ranges_on_the_device_alone() -> None:
    trace = annotate(
        drawn_trace("""
            stream 7 |   0  90 | step[EXTEND bs=1 toks=64] | cat=annotation
            stream 7 |   5  80 | gemm
            stream 7 | 100 130 | step[DECODE bs=1]         | cat=annotation
            stream 7 | 105 125 | gemv
            stream 7 | 140 170 | step[DECODE bs=1]         | cat=annotation
            stream 7 | 145 165 | gemv_again
        """)
    )
    stages = of_events(trace, "stage")
    assert [stages[name] for name in ("gemm", "gemv", "gemv_again")] == ["prefill", "decode", "decode"]
    assert of_events(trace, "step")["gemv"] == 1


def test_the_first_long_prompt_is_no_warm_up() -> None:
    lines = ["main | 0 900 | execute_context_1(4000)_generation_0(0) | cat=annotation"]
    lines += [
        f"main | {at} {at + 40} | execute_context_0(0)_generation_1(1) | cat=annotation"
        for at in range(900, 1300, 50)
    ]
    assert summarize(annotate(drawn_trace("\n".join(lines)))).steps.warm_up is None


def test_a_server_without_requests_is_not_bound_by_its_host() -> None:
    """Two requests of five iterations each, of which the device works all the time, and 0.8 s without any."""
    lines, at = [], 0
    for number in range(10):
        at = 20_000 * number + 800_000 * (number >= 5)
        lines += [
            f"main | {at} {at + 2000} | execute_context_0(0)_generation_4(4) | cat=annotation",
            f"main | {at + 100} {at + 1900} | aten::linear",
            f"main | {at + 200} {at + 300} | cudaLaunchKernel | corr={number}",
            f"stream 7 | {at + 300} {at + 19_800} | sgemm | corr={number}",
        ]
    found = summarize(annotate(drawn_trace("\n".join(lines))))
    assert (found.verdict.bound_by, found.steps.max_ms) == ("device", pytest.approx(20, abs=0.5))
    (note,) = (one.message for one in found.warnings if one.code == TIME_LEFT_OUT)
    assert note.startswith("waiting for requests, or for what the file does not show, takes 800 ms, 81%")


@pytest.mark.parametrize("pause", [5_000, 15_000])
def test_a_server_that_schedules_slowly_is_bound_by_its_host(pause: int) -> None:
    lines = [
        line.format(begin := number * (2000 + pause), begin + 2000, begin + 100, begin + 1900)
        for number in range(8)
        for line in (
            "main | {0} {1} | execute_context_0(0)_generation_4(4) | cat=annotation",
            "main | {2} {3} | cudaLaunchKernel | corr=" + str(number),
            "stream 7 | {2}.5 {3} | sgemm | corr=" + str(number),
        )
    ]
    found = summarize(annotate(drawn_trace("\n".join(lines))))
    assert (found.verdict.bound_by, len(found.steps.numbers)) == ("host", 8)
    assert TIME_LEFT_OUT not in {one.code for one in found.warnings}


def test_a_decoder_of_a_model_that_trains_is_no_server() -> None:
    trace = annotate(
        drawn_trace("""
            main |  0 30 | decode                    | cat=annotation
            main |  5 20 | aten::mm                  | seq=1
            main | 40 60 | MmBackward0               | seq=1 fwd=1
            main | 70 80 | Optimizer.step#SGD.step
        """)
    )
    assert not len(trace["iterations"])
    assert of_events(trace, "stage")["aten::mm"] == "forward"


def test_a_range_named_decode_next_to_one_of_training_is_no_server() -> None:
    """Nsight shows no operators: an autoencoder's decoder, or images in a thread of the loader."""
    trace = annotate(
        drawn_trace("""
            loader |  0 39 | decode           | cat=annotation
            main   |  0 30 | forward          | cat=annotation
            main   |  5  9 | cudaLaunchKernel | corr=1
            main   | 40 60 | backward         | cat=annotation
            main   | 45 49 | cudaLaunchKernel | corr=2
        """)
    )
    assert not len(trace["iterations"])


@pytest.mark.parametrize(("other", "count"), [("denoise", 0), ("prefill", 4), ("decode_one_token", 4)])
def test_what_decodes_images_generates_no_tokens(other: str, count: int) -> None:
    """The decoder of a diffusion model, or of files, follows other work."""
    trace = annotate(
        drawn_trace(f"""
            main |   0  60 | {other}  | cat=annotation
            main |   5  55 | aten::mm
            main |  60 100 | decode   | cat=annotation
            main |  65  95 | aten::conv2d
            main | 100 160 | {other}  | cat=annotation
            main | 105 155 | aten::mm
            main | 160 200 | decode   | cat=annotation
            main | 165 195 | aten::conv2d
        """)
    )
    assert len(trace["iterations"]) == count


def test_a_server_inside_of_training() -> None:
    trace = annotate(
        drawn_trace("""
            main |  0 30 | execute_context_1(9)_generation_0(0) | cat=annotation
            main |  5 20 | aten::bmm
            main | 32 38 | aten::mm                  | seq=1
            main | 40 60 | MmBackward0               | seq=1 fwd=1
            main | 70 80 | Optimizer.step#SGD.step
        """)
    )
    stages = of_events(trace, "stage")
    assert (stages["aten::bmm"], stages["aten::mm"]) == ("prefill", "forward")
    assert trace["steps"].text("evidence")[0] == "optimizer"


@pytest.mark.parametrize("outer", ["nn.Module: Wrapper_0", "a.py(1): main"])
def test_model_calls_in_a_loop_of_transformers(outer: str) -> None:
    """Also where a module's own call generates."""
    lines = [f"main | 0 1900 | {outer}"]
    for at in (0, 1000):
        lines += [f"main | {at} {at + 900} | transformers/generation/utils.py(3122): _sample"]
        for number, (start, end) in enumerate([(10, 400), (420, 500), (520, 600)]):
            lines += [
                f"main | {at + start} {at + end} | nn.Module: Model_0",
                f"main | {at + start + 1} {at + end - 1} | nn.Module: Layer_0",
                f"main | {at + start + 2} {at + end - 2} | aten::mm{number}",
            ]
    trace = annotate(drawn_trace("\n".join(lines)))
    stages = [row[0] for row in us(trace, "iterations", "stage")]
    assert stages == ["prefill", "decode", "decode"] * 2
    assert of_events(trace, "stage")["aten::mm1"] == ["decode", "decode"]


def generated(seed: int, growing: bool = True) -> tuple[Trace, list[tuple[str, int]]]:
    """A loop that generates, as shapes show it, and the stage and tokens of its iterations."""
    chance = random.Random(seed)
    layers, batch, lines, truth, at = chance.randint(1, 4), chance.randint(1, 8), [], [], 0
    for _ in range(chance.randint(1, 3)):
        prompt = chance.randint(2, 50)
        for new in range(chance.randint(3, 9) + 4 * (not growing)):
            query, key = (prompt, prompt) if not new else (1, prompt + new)
            key = key if growing else 64
            lines.append(f"main | {at} {at + 3} | aten::embedding")
            for layer in range(layers):
                dims = json.dumps([[batch, 4, query, 8], [batch, 4, key, 8]]).replace(" ", "")
                start = at + 5 + 10 * layer
                lines += [
                    f"main | {start} {start + 8} | aten::scaled_dot_product_attention | Input_Dims={dims}",
                    f"main | {start + 1} {start + 7} | aten::_scaled_dot_product_flash_attention "
                    f"| Input_Dims={dims}",
                ]
            at += 10 * layers + 20
            lines.append(f"main | {at - 12} {at - 10} | aten::argmax")
            truth.append(("decode" if new else "prefill", batch * query))
    return annotate(drawn_trace("\n".join(lines))), truth


@pytest.mark.parametrize("growing", [True, False], ids=["a growing cache", "a static cache"])
@pytest.mark.parametrize("seed", range(20))
def test_a_family_of_generating_loops(seed: int, growing: bool) -> None:
    trace, truth = generated(seed, growing)
    found = [
        (row["stage"], row["prefill_tokens"] + row["decode_tokens"]) for row in trace["iterations"].rows()
    ]
    assert found == truth
    assert len(trace["steps"]) == len(truth)


def test_attention_of_one_item_to_histories_is_no_generation() -> None:
    """A recommender scores an item by a history of any length; by chance one is longer by one."""
    lines = []
    for at, length in enumerate((9, 10, 31, 7, 18, 19, 5, 40)):
        dims = f"[[8,4,1,8],[8,4,{length},8]]"
        start = 100 * at
        lines.append(f"main | {start} {start + 9} | aten::scaled_dot_product_attention | Input_Dims={dims}")
    assert not len(annotate(drawn_trace("\n".join(lines)))["iterations"])


def test_attention_that_pools_is_no_generation() -> None:
    lines = []
    for at in range(0, 400, 100):
        for place, query in enumerate((17, 17, 17, 1)):
            dims = f"[[8,4,{query},8],[8,4,17,8]]"
            start = at + 20 * place
            lines.append(
                f"main | {start} {start + 9} | aten::scaled_dot_product_attention | Input_Dims={dims}"
            )
    assert not len(annotate(drawn_trace("\n".join(lines)))["iterations"])


# -- part by part


@pytest.mark.parametrize(
    ("name", "stage"),
    [
        *(
            (name, "prefill")
            for name in (
                "prefill",
                "model_prefill",
                "ModelPrefill",
                "prefill chunk",
                "PrefillStep",
                "prefill_batch_0",
            )
        ),
        *(
            (name, "decode")
            for name in (
                "decode",
                "decode iteration",
                "decode step 12",
                "decode_n_tokens",
                "model_decode_forward",
            )
        ),
        *(
            (name, None)
            for name in (
                "prefilling",
                "decoder",
                "decode 3",
                "my_decode",
                "execute_context_0(0)_generation_0(0)",
            )
        ),
    ],
)
def test_plain_names_of_iterations(name: str, stage: str | None) -> None:
    found = iteration_of(name)
    assert (found and found.stage) == stage
    assert iteration_of(name, any_name=False) is None


def test_very_large_counts_fit_the_table() -> None:
    trace = find_iterations(
        drawn_trace(f"main | 0 9 | execute_context_1({'9' * 17})_generation_0(0) | cat=annotation")
    )
    assert trace["iterations"]["prefill_tokens"].tolist() == [2**31 - 1]
    assert iteration_of(f"step[DECODE bs={'1' * 30}]").decode_requests == int("1" * 18)  # type: ignore[union-attr]


def test_iterations_of_one_track_follow_each_other() -> None:
    """The track with most of them; nested ones are part of the outer one."""
    trace = find_iterations(
        drawn_trace("""
        main     |  0 50 | step[EXTEND bs=2 toks=7] | cat=annotation
        main     |  5 20 | step[DECODE bs=1]        | cat=annotation
        main     | 60 70 | step[DECODE bs=3]        | cat=annotation
        main     | 70 80 | step[DECODE bs=4]        | cat=annotation
        other    |  0 90 | step[DECODE bs=9]        | cat=annotation
        stream 7 |  0 90 | step[DECODE bs=8]        | cat=annotation
    """)
    )
    columns = (
        "track",
        "stage",
        "start_ns",
        "end_ns",
        "prefill_requests",
        "prefill_tokens",
        "decode_requests",
        "decode_tokens",
    )
    assert us(trace, "iterations", *columns) == [
        (0, "prefill", 0, 50, 2, 7, None, None),
        (0, "decode", 60, 70, None, None, 3, None),
        (0, "decode", 70, 80, None, None, 4, None),
    ]


def test_events_have_the_stage_of_the_iteration_around_them_on_their_track() -> None:
    trace = drawn_trace(
        "a | 0 1 | x\na | 5 6 | x\na | 10 11 | x\na | 12 13 | x\nb | 5 6 | x\na | 6 7 | aside"
    )
    table = Table(
        ITERATIONS,
        {
            "track": [0, 0],
            "stage": ["prefill", "decode"],
            "start_ns": [5000, 10_000],
            "end_ns": [8000, 12_000],
        },
    )
    among = ~trace.events.text("name").mask("aside")
    found = stages_by_iteration(trace.with_table(table), among).tolist()
    begin = (trace.events["start_ns"] // 1000).tolist()
    names = [STAGES[code] if code >= 0 else None for code in found]
    assert sorted(zip(begin, names, strict=True), key=str) == sorted(
        [(0, None), (5, "prefill"), (5, None), (6, None), (10, "decode"), (12, None)], key=str
    )
    assert stages_by_iteration(trace, among).tolist() == [-1] * 6


@pytest.mark.parametrize(
    ("dims", "sizes"),
    [
        ([[2, 8, 1, 64], [2, 8, 33, 64], [2, 8, 33, 64]], (2, 1, 33)),
        ([[2, 7, 64], [2, 9, 64]], (2, 7, 9)),
        ([[], [2, 7, 64], [2, 9, 64]], None),
        ([0, [2, 7, 64], [2, 9, 64]], (2, 7, 9)),
        ([[2, 64], [2, 64]], None),
        ([[2, 7, 64]], None),
        ([["2", 7, 64], [2, 9, 64]], None),
        (None, None),
    ],
)
def test_shapes_of_attention_give_batch_query_and_key(dims: object, sizes: tuple[int, ...] | None) -> None:
    assert inference._sizes(dims) == sizes


def attention(*sizes: tuple[int, int]) -> inference._Attention:
    query, key = np.array(sizes, np.int64).reshape(-1, 2).T
    return inference._Attention(np.arange(len(sizes)), np.ones(len(sizes), np.int64), query, key)


@pytest.mark.parametrize(
    ("sizes", "generates"),
    [
        ([], False),
        ([(1, 5)], False),
        ([(7, 7), (1, 8)], True),
        ([(7, 7), (7, 7), (1, 8)], False),  # more long queries than single ones
        ([(1, 8), (1, 9)], True),
        ([(1, 8), (1, 8)], False),
        ([(1, 8), (1, 10)], False),
        ([(7, 7), (9, 9)], False),
    ],
)
def test_queries_of_one_token_show_a_generation(sizes: list[tuple[int, int]], generates: bool) -> None:
    assert inference._generates(attention(*sizes)) is generates


def test_outermost_calls_of_attention_with_shapes_count() -> None:
    q, k = "[[2,4,3,8],[2,4,7,8]]", "[[5,4,1,8],[5,4,9,8]]"
    trace = drawn_trace(f"""
        main  |  0  9 | aten::mm | Input_Dims={k}
        main  | 10 19 | aten::scaled_dot_product_attention | Input_Dims={q}
        main  | 12 15 | aten::_scaled_dot_product_flash_attention | Input_Dims={k}
        main  | 20 29 | aten::scaled_dot_product_attention
        main  | 30 39 | aten::scaled_dot_product_attention | Input_Dims={k}
        other | 40 49 | aten::scaled_dot_product_attention | Input_Dims={q}
        a     | 50 59 | aten::scaled_dot_product_attention | Input_Dims={q}
    """)
    found = inference._calls(trace)
    assert trace.events["start_ns"][found.rows].tolist() == [10_000, 30_000]
    assert [column.tolist() for column in found[1:]] == [[2, 5], [3, 1], [7, 9]]


def test_an_iteration_begins_with_a_lookup_or_where_lengths_change() -> None:
    calls = attention((7, 7), (7, 7), (1, 8), (1, 8), (1, 9))
    starts = np.array([10, 20, 30, 40, 50])
    none = np.zeros(0, np.int64)
    assert inference._begins_iteration(calls, starts, none).tolist() == [True, False, True, False, True]
    assert inference._begins_iteration(calls, starts, np.array([5, 35])).tolist() == [
        True,
        False,
        False,
        True,
        False,
    ]


def test_an_iteration_lasts_from_the_lookup_after_the_attention_before_to_the_last_operator() -> None:
    begin = np.array([0, 5, 10, 20, 25, 28, 40])
    calls = np.array([2, 6])  # at 10 and at 40
    assert inference._starts(begin, calls, calls, np.array([5, 25, 28])).tolist() == [5, 25]
    assert inference._starts(begin, calls, calls, np.array([28])).tolist() == [10, 28]
    assert inference._starts(begin, calls, calls, np.zeros(0, np.int64)).tolist() == [10, 40]
    trace = drawn_trace("""
        main  |  0  2 | aten::embedding
        main  |  3  9 | aten::scaled_dot_product_attention
        main  | 10 15 | aten::mm
        main  | 11 19 | range | cat=annotation
        main  | 20 22 | aten::embedding
        main  | 23 29 | aten::scaled_dot_product_attention
        main  | 30 34 | aten::add
        other | 31 99 | aten::add
    """)
    names = trace.events.text("name").mask("aten::scaled_dot_product_attention")
    one = np.ones(2, np.int64)
    found = inference._ends(
        trace, inference._Attention(np.flatnonzero(names), one, one, one), np.array([0, 20_000])
    )
    assert found.tolist() == [15_000, 34_000]
