"""Pairs of real traces compared: what is known of them is what is said."""

from __future__ import annotations

from collections.abc import Callable

from stepscope.facts.annotate.links.launches import device_work
from stepscope.models.diff import Row, RunComparison, compare, explain
from stepscope.trace.trace import Trace


def pair(opened: Callable[[str], Trace], before: str, after: str) -> RunComparison:
    return compare(opened(before), opened(after))


def row(found: RunComparison, part: str, *key: str) -> Row:
    return next(one for one in found.parts[part] if one.key == key)


def test_workers_take_data_loading_out_of_the_step(opened: Callable[[str], Trace]) -> None:
    folder = "kineto_resnet50_v100"
    found = pair(opened, f"{folder}/num_workers_0.json.gz", f"{folder}/num_workers_4.json.gz")
    loading = row(found, "stages", "data_loading", "CPU")
    assert found.parts["stages"][0] is loading
    assert loading.verdict == "faster"
    assert loading.change_ms < -60
    assert row(found, "time use", "idle: data").verdict == "faster"
    # One of the six steps is as slow as before (workers start), so the step itself is not certain.
    assert (found.step.verdict, found.evidence, found.apart) == ("faster", "likely", (5, 6))
    assert "B takes 29% less time, likely: 5 of 6 steps" in explain(found)
    assert 0.6 < (found.step.ratio or 0) < 0.8


def test_a_v100_takes_longer_than_an_a100(opened: Callable[[str], Trace]) -> None:
    found = pair(opened, "diff_a100_v100/a100_rank3of8.json.gz", "diff_a100_v100/v100_rank1of2.json.gz")
    assert found.step.verdict == "slower"
    assert (found.before.rank, found.after.rank) == (3, 1)
    assert set(found.differing) == {"device", "ranks"}
    assert row(found, "stages", "backward", "device").verdict == "slower"
    assert row(found, "kernels", "volta_sgemm_128x32_nt").verdict == "new"
    assert row(found, "operators", "aten::mm").before is not None


def test_one_step_each_gives_no_verdict_but_modules_are_beside_each_other(
    opened: Callable[[str], Trace],
) -> None:
    found = pair(
        opened, "pair_h100_mi300x/timesformer_h100.json.gz", "pair_h100_mi300x/timesformer_mi300.json.gz"
    )
    assert found.step.verdict == "one_step"
    both = [one for one in found.parts["modules"] if one.before and one.after]
    assert len(both) > 200
    assert {one.verdict for one in both} == {"one_step"}
    # Device work takes 24 % less on AMD, softmax most; what takes longer there stands out.
    assert row(found, "kinds", "reduction") is found.parts["kinds"][0]
    assert "device work fell by 24% (mostly reductions)" in explain(found)
    slower = {one.key[0] for one in found.parts["operators"] if one.change_ms and one.change_ms > 1}
    assert slower == {"aten::addmm"}


def test_all_device_work_of_the_steps_is_in_kernels_and_in_operators(opened: Callable[[str], Trace]) -> None:
    trace = opened("steps_ns_v100/rank0.json.gz")
    found = compare(trace, trace)
    work = device_work(trace) & (trace.events["step"] >= 0)
    total = trace.events["duration_ns"][work].sum()
    for part in ("kernels", "operators"):
        times = found.before.parts[part].times.values()
        assert sum(one.sum() for one in times) == total
