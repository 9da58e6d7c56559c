"""What rules have to work with: the framework, the library, advice, places, and how a finding is limited."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from drawn_findings import A100, repeated
from msgspec.structs import replace

from stepscope.analyze import RuleContext
from stepscope.analyze.finding import Gain, Place
from stepscope.analyze.rule_context import finding_of_part, share_of_run
from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace

NODE = "autograd::engine::evaluate_function:"
PLAIN = "main | 10 40 | aten::mm"
UPDATED = f"{PLAIN}\nmain | 50 60 | Optimizer.step#SGD.step"


def context(text: str, **metadata: Any) -> RuleContext:
    return RuleContext(annotate(drawn_trace(text, **metadata)))


@pytest.mark.parametrize(
    ("framework", "is_jax", "has_advice"),
    [
        ("", False, True),
        ("pytorch", False, True),
        ("jax", True, True),
        ("xla", True, True),
        ("mx", False, False),
    ],
)
def test_advice_is_for_the_framework(framework: str, is_jax: bool, has_advice: bool) -> None:
    found = context(repeated(PLAIN), framework=framework)
    assert (found.is_jax, found.has_advice) == (is_jax, has_advice)
    words = ("jax", "jax", "jax") if is_jax else ("pytorch", "inference", "pytorch")
    options = ({"jax": "jax"}, {"jax": "jax", "inference": "inference"}, {"jax": "jax", "inference": ""})
    assert tuple(found.by_framework("pytorch", **one) for one in options) == words


@pytest.mark.parametrize(
    ("text", "trains", "loop"),
    [
        (PLAIN, False, "loop"),
        (UPDATED, True, "training loop"),
        (f"{PLAIN} | seq=1\nmain | 50 60 | {NODE} MmBackward0 | seq=1 fwd=1", True, "training loop"),
        (f"{PLAIN}\nmain | 50 60 | Optimizer.zero_grad#SGD.zero_grad", True, "training loop"),
    ],
)
def test_what_trains(text: str, trains: bool, loop: str) -> None:
    found = context(repeated(text))
    assert (found.trains, found.loop, found.serves) == (trains, loop, False)
    assert found.by_framework("pytorch", jax="jax", inference="inference") == (
        "pytorch" if trains else "inference"
    )


@pytest.mark.parametrize(
    ("files", "command", "library"),
    [
        ((), (), ""),
        (("train.py",), (), ""),
        (("/x/transformers/trainer.py", "accelerate/accelerator.py"), (), "transformers"),
        (("transformers/trainer_seq2seq.py",), (), "transformers"),
        (("mytransformers/trainer.py",), (), ""),
        (("lightning/pytorch/loops/fit.py",), (), "lightning"),
        (("pytorch_lightning/trainer.py", "timm/data/loader.py"), (), "lightning"),
        (("keras/src/trainers/trainer.py",), (), "keras"),
        (("keras/engine/training.py",), (), "keras"),
        (("timm/data/loader.py", "accelerate/optimizer.py"), (), "timm"),
        (("accelerate/scheduler.py",), (), "accelerate"),
        ((), ("-m", "x/timm/data/loader.py"), "timm"),
    ],
)
def test_the_library_is_told_by_its_files(
    files: tuple[str, ...], command: tuple[str, ...], library: str
) -> None:
    frames = "\n".join(f"main | {n} {900 - n} | {file}(3): run | cat=python" for n, file in enumerate(files))
    found = context(repeated(f"{frames}\n{UPDATED}"), capture={"command": list(command)})
    assert found.library == library
    advice = {"timm": "Timm.", "keras": "Keras."}
    expected = {"timm": "Timm. P.", "keras": "Keras. P."}.get(library, "P.")
    assert found.advice("P.", jax="J.", inference="I.", **advice) == expected


def test_advice_for_inference_names_no_library() -> None:
    frame = "main | 0 900 | timm/data/loader.py(3): run | cat=python"
    found = context(repeated(f"{frame}\n{PLAIN}"))
    assert found.advice("P.", inference="I.", timm="Timm.") == "I."
    assert found.advice("P.", timm="Timm.") == "Timm. P."
    jax = context(repeated(f"{frame}\n{UPDATED}"), framework="jax")
    assert (jax.advice("P."), jax.advice("P.", jax="J."), jax.advice("P.", timm="T.")) == (
        "P.",
        "J.",
        "T. P.",
    )


def test_how_often_in_words() -> None:
    found = context(repeated("main | 10 20 | aten::mm\nmain | 30 35 | aten::mm\nmain | 50 60 | aten::relu"))
    rows = found.search.find("aten::")
    names = [found.search.name(row) for row in rows.tolist()]
    mm = rows[[name == "aten::mm" for name in names]]
    assert [found.times(one) for one in (mm, mm[:2], mm[:1], mm[:3])] == [
        "2 times",
        "once",
        "0.5 times",
        "1.5 times",
    ]


def test_the_place_of_most_of_the_time() -> None:
    text = """
        main | 10 400 | train.py(7): fit | cat=python
        main | 20 100 | aten::mm
        main | 410 500 | net.py(9): forward | cat=python
        main | 420 480 | aten::mm
        main | 600 610 | aten::relu
    """
    found = context(repeated(text))
    mm, relu = (found.search.find(name) for name in ("aten::mm", "aten::relu"))
    assert found.main_place(mm) == " Most is in train.py:7 in fit."
    assert found.main_place(mm[1:2]) == " See net.py:9 in forward."
    assert found.main_place(relu) == ""
    assert found.place(int(mm[0])) == " in train.py:7 in fit"
    assert found.place(int(relu[0])) == ""


STEP = "main | 0 1000 | ProfilerStep#0\n"


@pytest.mark.parametrize(
    ("text", "names", "limit"),
    [
        (STEP + "main | 10 91 | aten::a\nmain | 100 120 | aten::b", "aten::", "warning"),
        (STEP + "main | 10 90 | aten::a\nmain | 100 120 | aten::b", "aten::", "critical"),  # 80 % of it
        (STEP + "main | 10 91 | aten::a", "aten::", "critical"),  # nothing to compare it with
        (repeated("main | 10 91 | aten::a\nmain | 100 120 | aten::b"), "aten::", "critical"),
        (
            STEP
            + "main | 1 2 | cudaLaunchKernel | corr=1\nstream 7 | 10 91 | a | corr=1\n"
            + "main | 95 100 | aten::b",
            "^a$|aten::b",
            "critical",
        ),
        ("main | 10 60 | aten::a\nmain | 100 150 | aten::b", "aten::", "info"),  # no steps are marked
    ],
)
def test_how_severe_a_finding_may_be(text: str, names: str, limit: str) -> None:
    found = context(text)
    rows = found.search.find(names)
    finding = found.finding("What.", "Do.", rows, Gain(0.5, "why"))
    assert (finding.limit, finding.gain.ms, finding.rank, finding.of) == (limit, 0.5, 0, "step")
    assert (finding.step_ms, finding.steady_ms) == (found.measures.step_ms, found.measures.steady_ms)
    assert found.finding("What.", "Do.", rows, Gain(0.5), limit="info").limit == "info"
    simulated = found.finding("What.", "Do.", rows, Gain(0.5, edit=0))
    assert simulated.limit == ("critical" if limit == "info" else limit)


def test_a_gain_counts_as_far_as_it_recurs() -> None:
    text = "\n".join(
        f"main | {at} {at + 1000} | ProfilerStep#{n}\nmain | {at + 5} {at + us} | aten::a"
        for n, (at, us) in enumerate(((0, 15), (1000, 15), (2000, 65)))
    )
    found = context(text)
    rows = found.search.find("aten::a")
    assert found.finding("What.", "Do.", rows, Gain(0.8)).gain.ms == pytest.approx(0.8 * 30 / 80)
    assert found.finding("What.", "Do.", rows, Gain(0.8), recurs=False).gain.ms == 0.8


def run(**seconds: float) -> dict[str, Any]:
    stages = {name: round(value * 1e9) for name, value in seconds.items()}
    facts = {"ended": True, "elapsed_ns": sum(stages.values()), "steps": 100, "data_loading_ns": 0}
    place = {"function": "validate", "file": "/me/train.py", "line": 7, "count": 50, "stage": "evaluation"}
    places = [place | {"ns": 100_000_000}, place | {"ns": 50_000_000, "line": 9, "stage": "other"}]
    return {"run_shares": facts | {"stages_ns": stages, "places": places}}


def test_a_part_of_the_run_is_of_its_time_after_the_start_up() -> None:
    found = context(repeated(PLAIN), capture=run(start_up=5.0, training_steps=0.8, evaluation=0.2))
    assert share_of_run(found, "evaluation") == pytest.approx(0.2)
    assert share_of_run(found, "rollout") == 0.0
    assert share_of_run(context(repeated(PLAIN)), "evaluation") is None
    (finding,) = finding_of_part(found, "evaluation", "Evaluation takes", "Do.", 0.2)
    assert (
        finding.what
        == "Evaluation takes 20% of the run after start-up. Most is in me/train.py:7 in validate."
    )
    assert (finding.of, finding.step_ms, finding.steady_ms) == (
        "run",
        pytest.approx(10.0),
        pytest.approx(10.0),
    )
    assert (finding.gain.ms, finding.gain.note) == (pytest.approx(2.0), "at most this time")
    assert finding.gain.range_ms == (0.0, pytest.approx(2.0))
    (place,) = finding.evidence
    assert (place.name, place.stage, place.file, place.line, place.function, place.count) == (
        *("validate", "evaluation", "/me/train.py", 7, "validate"),
        0.5,
    )
    assert place.ms == pytest.approx(1.0)
    assert not [*finding_of_part(found, "evaluation", "Evaluation takes", "Do.", 0.2001)]
    (unknown,) = finding_of_part(found, "training_steps", "Training takes", "Do.", 0.2)
    assert unknown.what == "Training takes 80% of the run after start-up."
    expected = Place("training_steps", "training_steps", "", "", None, "", 0.0, unknown.evidence[0].ms)
    assert unknown.evidence == (expected,)
    assert expected.ms == pytest.approx(8.0)


def test_gains_of_a_run_end_with_it() -> None:
    gains = context(repeated(PLAIN), capture=run(start_up=5.0, training_steps=1.0)).gains  # 10 ms per step
    cases = {
        (2.0, 0.0, 0.0): (2.0, (0.0, 2.0)),
        (2.0, 1.0, 3.0): (2.0, (1.0, 3.0)),
        (2.0, 1.0, 1.5): (2.0, (1.0, 2.0)),
        (12.0, 11.0, 13.0): (10.0, (10.0, 10.0)),
    }
    for (ms, least, most), (expected, bounds) in cases.items():
        gain = gains.of_run(ms, "why", least, most)
        assert (gain.ms, gain.range_ms, gain.note) == (pytest.approx(expected), pytest.approx(bounds), "why")
    assert gains.of_run(2.0, "why").range_ms == (0.0, 2.0)


# -- gains

DEVICE = """
    main     | 10 12 | aten::mm
    main     | 10 11 | cudaLaunchKernel | corr=1
    stream 7 | 20 500 | volta_gemm | corr=1
    main     | 14 16 | aten::sort
    main     | 14 15 | cudaLaunchKernel | corr=2
    stream 7 | 500 900 | sort_kernel | corr=2
    main     | 100 905 | cudaDeviceSynchronize
"""


def test_gains_are_simulated_and_limited_by_what_the_events_cost() -> None:
    gains = context(repeated(DEVICE), devices=A100).gains
    search = gains._search
    sort, product = search.find("sort_kernel"), search.find("volta_gemm")
    free = gains.gain(sort, "scale:select=name=sort_kernel,factor=0", note="if")
    assert (free.ms, free.note, free.changes) == (
        pytest.approx(0.4),
        "if",
        ("scale:select=name=sort_kernel,factor=0",),
    )
    assert gains.gain(sort, "scale:select=name=sort_kernel,factor=0", at_most="most").range_ms == (
        0.0,
        pytest.approx(0.4),
    )
    every = gains.gain(sort, "scale:select=category=kernel,factor=0")
    assert every.ms == pytest.approx(0.401)  # the kernel, and the call that launches it
    assert gains.whatif("scale:select=name=nothing,factor=0") is None
    part = gains.gain(sort, "scale:select=name=nothing,factor=0", part=0.5)
    assert (part.ms, part.note, part.changes) == (pytest.approx(0.2), "at most the time of these events", ())
    assert gains.gain(sort, at_most="most").note == "most"
    assert gains.gain(sort, note="this", at_most="most").note == "this"
    half = gains.scaled(product, 0.5, "half")
    assert (half.ms, half.note, half.range_ms) == (pytest.approx(0.24), "half", None)
    each = gains.scaled(np.union1d(product, sort), np.array([0.5, 0.25] * 2))
    assert each.ms == pytest.approx(0.24 + 0.3)
    assert gains.scaled(sort).ms == pytest.approx(0.4)
    assert gains.scaled(sort, 2.0).ms == 0.0


def test_gains_of_several_fixes_together() -> None:
    gains = context(repeated(DEVICE), devices=A100).gains
    search = gains._search
    sort, product = (gains.scaled(search.find(name), 0.5) for name in ("sort_kernel", "volta_gemm"))
    both = gains.combined([sort, product])
    assert both is not None
    assert (both.ms, both.note) == (pytest.approx(0.2 + 0.24), "simulated together")
    assert gains.combined([sort]) is None
    assert gains.combined([sort, Gain(0.3)]) is None
    again = gains.scaled(search.find("sort_kernel"), 0.25)
    assert gains.combined([sort, again]) is None  # one in place of the other
    doubted = gains.combined([replace(sort, ms=0.05), product])
    assert doubted is not None
    assert doubted.ms == pytest.approx(0.29)


def test_bounds_end_with_the_step() -> None:
    gains = context(repeated(DEVICE), devices=A100).gains
    plain, wide, all_of_it = (
        gains.bound(0.5, "why"),
        gains.bound(0.5, "why", 0.5, 0.25),
        gains.bound(2.0, "why", 1.0, 0.5),
    )
    assert (plain.ms, plain.note, plain.range_ms, plain.edit) == (0.5, "why", None, None)
    assert (wide.ms, wide.range_ms) == (0.5, (0.125, 0.75))
    assert (all_of_it.ms, all_of_it.range_ms) == (1.0, (0.5, 1.0))
    assert gains.bound(0.5, "why", besides=0.2).range_ms == (0.0, pytest.approx(0.6))
    assert gains.bound(0.5, "why", sure=0.2).range_ms == (pytest.approx(0.1), 0.5)


@pytest.mark.parametrize(
    ("ms", "changes"),
    [
        (0.4, ("scale:select=name=sort_kernel,factor=0",)),
        (0.4 / 1.1 + 1e-9, ("scale:select=name=sort_kernel,factor=0",)),
        (0.4 / 1.1 - 1e-9, ()),
        (0.4 / 0.9 - 1e-9, ("scale:select=name=sort_kernel,factor=0",)),
        (0.4 / 0.9 + 1e-9, ()),
        (0.0, ()),
    ],
)
def test_a_bound_is_to_be_tried_where_a_change_saves_as_much(ms: float, changes: tuple[str, ...]) -> None:
    found = context(repeated(DEVICE), devices=A100)
    gain = found.gains.without(found.search.find("sort_kernel"), ms, "why")
    assert (gain.ms, gain.note, gain.changes, gain.edit) == (ms, "why", changes, None)


def test_events_of_more_than_four_names_are_not_to_be_tried() -> None:
    found = context(repeated("\n".join(f"main | {at} {at + 5} | aten::op{at}" for at in range(10, 60, 10))))
    rows = found.search.find("aten::op")
    four = found.search.find("aten::op[1-4]0")
    assert found.gains.without(rows, 0.025, "why").changes == ()
    assert found.gains.without(four, 0.02, "why").changes == tuple(
        f"scale:select=operator=aten::op{at},factor=0" for at in range(10, 50, 10)
    )


@pytest.mark.parametrize(("removed", "high"), [(None, 0.5), (0, 0.5), (1, 0.5 + 3 * 250e-6)])
def test_a_gain_is_unsure_by_what_recording_its_events_cost(removed: int | None, high: float) -> None:
    cost = {} if removed is None else {"removed_ns": removed}
    found = context(repeated(PLAIN + "\nmain | 50 60 | aten::a\nmain | 52 55 | aten::b"), recording_cost=cost)
    inside = found.search.within(found.search.find("aten::"))
    unsure = found.gains.unsure(Gain(0.4, range_ms=(0.1, 0.5)), inside)
    assert (unsure.ms, unsure.range_ms) == (0.4, (0.1, pytest.approx(high)))
