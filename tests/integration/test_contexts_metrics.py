"""Samples, memory and C++ frames in the tree."""

import time

import torch
from collected import Collected
from torch import nn

import stepscope


def collect(work, tmp_path, **options):
    path = tmp_path / "run.stepscope"
    with stepscope.record_contexts(path, **options):
        work()
    return Collected.read(path)


def total(run, metric):
    return sum(c.metrics[metric]["sum"] for c in run.contexts if metric in c.metrics)


def in_python(function, seconds=0.4):
    """CPU time in Python alone, until this thread has had that much of it."""
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        function()


def spin():
    return sum(n * n for n in range(1000))


def test_samples_of_cpu_time_stand_where_it_was_spent(tmp_path):
    matrix = torch.randn(300, 300)

    def work():
        in_python(spin)
        in_python(lambda: matrix @ matrix)

    before = time.thread_time_ns()
    run = collect(work, tmp_path, sample=500)
    spent = time.thread_time_ns() - before
    sampled = [c for c in run.contexts if "sampled_cpu_ns" in c.metrics]
    in_spin = [c for c in sampled if any(p.name == "spin" for p in c.path)]
    in_product = [c for c in sampled if c.name == "aten::mm"]
    assert sum(c.metrics["sampled_cpu_ns"]["count"] for c in in_spin) > 10
    assert sum(c.metrics["sampled_cpu_ns"]["count"] for c in in_product) > 10
    # the time between samples is what it is, however rarely a busy machine takes them
    mine = [c for c in sampled if c.path[1].name == "main"]
    assert 0.4e9 < sum(c.metrics["sampled_cpu_ns"]["sum"] for c in mine) <= spent
    assert all(c.path[1].kind == "thread" for c in sampled)


def test_samples_of_elapsed_time_see_what_waits(tmp_path):
    run = collect(lambda: time.sleep(0.3), tmp_path, sample_real=200)
    lines = [c for c in run.contexts if "sampled_real_ns" in c.metrics and c.kind == "python"]
    waited = sum(c.metrics["sampled_real_ns"]["sum"] for c in lines)
    assert waited >= 0.2e9
    assert total(run, "sampled_cpu_ns") == 0


def test_counters_stand_where_samples_do_or_the_file_says_why_not(tmp_path):
    run = collect(lambda: in_python(spin), tmp_path, sample=200, perf=True)
    assert total(run, "cycles") > 0 or any("counters" in note for note in run.content["notes"])


# -- memory


def test_memory_is_counted_where_it_is_allocated_and_released(tmp_path):
    def work():
        kept = torch.empty(1000, dtype=torch.float32)
        torch.empty(500, dtype=torch.float32)
        return kept

    run = collect(work, tmp_path, memory=True)
    allocated = [
        c.metrics["allocated_bytes"]
        for c in run.contexts
        if "allocated_bytes" in c.metrics and c.name == "aten::empty"
    ]
    assert sorted(row["sum"] for row in allocated) == [2000, 4000]
    assert total(run, "freed_bytes") == 6000


def test_tensors_outlive_the_collection_that_counted_them(tmp_path):
    kept = []
    collect(lambda: kept.append(torch.ones(1000)), tmp_path, memory=True)
    assert kept.pop().sum() == 1000
    run = collect(lambda: torch.ones(3), tmp_path)
    assert total(run, "allocated_bytes") == 0


# -- C++ frames


def test_native_frames_stand_between_python_and_its_operators(tmp_path):
    model = nn.Linear(4, 4)
    run = collect(lambda: model(torch.randn(2, 4)), tmp_path, native=True)
    (linear,) = run.named("aten::linear")
    above = [c.kind for c in linear.path]
    first = above.index("native")
    assert above[first - 1] == "python"
    assert set(above[first:-1]) == {"native"}
    names = [c.name for c in linear.path if c.kind == "native"]
    assert any("linear" in name for name in names)
    assert not any("RecordFunction" in name or "stepscope" in name for name in names)
    (addmm,) = run.named("aten::addmm")
    assert linear in addmm.path
    plain = collect(lambda: model(torch.randn(2, 4)), tmp_path)
    assert plain.counts() == run.counts()
