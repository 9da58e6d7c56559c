"""Recording from Python: `profile` and `trace_handler`, in the test's own process."""

import gc

import pytest
import torch
from test_run import Capture
from torch import nn

from stepscope.errors import CaptureError
from stepscope.record import profile, ranges, trace_handler
from stepscope.record.patch import undo


class Training:
    """A loop over a small model."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)

    def step(self):
        self.model(torch.randn(2, 4)).sum().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, steps):
        for _ in range(steps):
            self.step()


@pytest.fixture
def training():
    return Training()


def test_profile_records_steps_and_leaves_torch_as_it_was(training, tmp_path):
    path = tmp_path / "run.stepscope"
    before = nn.Module.__call__, torch.optim.SGD.step
    model = training.model

    with profile(model, path=path, warmup=2, steps=2, shapes=False) as recording:
        training.run(6)

    capture = Capture.read(path)
    assert recording.path == path
    assert (nn.Module.__call__, torch.optim.SGD.step) == before
    assert capture.manifest["outcome"] == "complete"
    assert capture.manifest["steps_recorded"] == [2, 3]
    assert capture.manifest["options"]["shapes"] is False
    assert [(root["name"], root["path"]) for root in capture.roots] == [("model", "")]
    assert capture.calls("0") == 2


def test_profile_without_warmup_begins_with_the_block(training, tmp_path):
    path = tmp_path / "run.stepscope"

    with profile(path=path, warmup=0, steps=2):
        training.run(2)

    capture = Capture.read(path)
    assert capture.manifest["steps_recorded"] == [0, 1]
    assert capture.calls("") == 2


def test_the_only_step_recorded_without_warmup_is_kept(training, tmp_path):
    path = tmp_path / "run.stepscope"

    with profile(path=path, warmup=0, steps=1):
        training.run(5)

    assert Capture.read(path).manifest["steps_recorded"] == [0]


def test_an_exception_passes_through_profile(training, tmp_path):
    path = tmp_path / "run.stepscope"

    def fail():
        with profile(path=path, warmup=1):
            training.run(3)
            raise ValueError("bad batch")

    with pytest.raises(ValueError, match="bad batch"):
        fail()

    capture = Capture.read(path)
    assert capture.manifest["outcome"] == "raised"
    assert capture.manifest["steps_recorded"] == [1, 2]


def test_profile_refuses_to_overwrite_what_is_no_capture(tmp_path):
    path = tmp_path / "notes.txt"
    path.write_text("mine")

    with pytest.raises(CaptureError, match="is not a capture"), profile(path=path):
        pass

    assert path.read_text() == "mine"


@pytest.mark.filterwarnings("ignore:.*Profiler clears events:UserWarning")
def test_a_handler_writes_a_capture_for_each_trace(training, tmp_path):
    before = nn.Module.__call__
    handler = trace_handler(training.model, tmp_path / "run.stepscope")
    schedule = torch.profiler.schedule(wait=1, warmup=1, active=2, repeat=2)

    with torch.profiler.profile(schedule=schedule, on_trace_ready=handler) as profiler:
        for _ in range(9):
            training.step()
            profiler.step()

    first = Capture.read(tmp_path / "run.stepscope")
    second = Capture.read(tmp_path / "run-2.stepscope")
    assert first.manifest["steps_recorded"] == [2, 3]
    assert second.manifest["steps_recorded"] == [6, 7]
    for capture in (first, second):
        assert capture.manifest["outcome"] == "complete"
        assert capture.calls("") == capture.calls("0") == 2
    del profiler, handler
    gc.collect()
    assert nn.Module.__call__ is before


def test_a_handler_without_a_schedule_needs_no_model(training, tmp_path):
    path = tmp_path / "run.stepscope"
    before = nn.Module.__call__

    with torch.profiler.profile(record_shapes=True, on_trace_ready=trace_handler(path=path)):
        training.run(3)

    capture = Capture.read(path)
    assert nn.Module.__call__ is before
    assert capture.manifest["steps_recorded"] == []
    assert capture.manifest["options"]["shapes"] is True
    assert capture.roots[0]["name"] == "model"
    assert capture.calls("0") == 3


class Whole(nn.Module):
    """A module that trains in its own forward pass."""

    def __init__(self, training):
        super().__init__()
        self.run = training.run

    def forward(self, steps):
        self.run(steps)


def in_a_range(training, steps):
    with torch.profiler.record_function("epoch"):
        training.run(steps)


def in_a_module(training, steps):
    Whole(training)(steps)


def in_blocks(training, steps):
    for _ in range(steps):
        with torch.no_grad():
            training.model(torch.randn(2, 4))
        training.step()


@pytest.mark.parametrize("around", [in_a_range, in_a_module, in_blocks])
def test_no_range_outlives_the_profiler_that_saw_it_begin(around, training, tmp_path, monkeypatch):
    """torch would write to freed memory when such a range ends under the next profiler."""
    path, open_at_stop, stop = tmp_path / "run.stepscope", [], torch.profiler.profile.stop_trace

    def stop_trace(profiler):
        open_at_stop.append(list(ranges._thread.open))
        stop(profiler)

    monkeypatch.setattr(torch.profiler.profile, "stop_trace", stop_trace)
    with profile(path=path, warmup=3, steps=2):
        training.run(1)
        around(training, 8)

    assert open_at_stop == [[], []]
    assert Capture.read(path).manifest["steps_recorded"] == [3, 4]
    assert torch.profiler.record_function.__enter__.__name__ == "__enter__"
    assert not hasattr(torch.profiler.record_function.__enter__, "__wrapped__")


def test_a_range_of_another_profiler_ends_before_ours_starts(training, tmp_path, monkeypatch):
    """And one whose end nobody sees, as nothing is recorded any more, is ended once."""
    unwatch = ranges.watch_open_ranges()
    region = torch.profiler.record_function("of the program")
    with torch.profiler.profile():
        region.__enter__()
    undo(unwatch)
    assert ranges._thread.open == [region]
    open_at_start, prepare = [], torch.profiler.profile.prepare_trace

    def prepare_trace(profiler):
        open_at_start.append(list(ranges._thread.open))
        prepare(profiler)

    monkeypatch.setattr(torch.profiler.profile, "prepare_trace", prepare_trace)
    with profile(path=tmp_path / "run.stepscope", warmup=1, steps=1):
        training.run(4)
    assert open_at_start == [[]] * len(open_at_start) != []
    region.__exit__(None, None, None)
    assert Capture.read(tmp_path / "run.stepscope").manifest["steps_recorded"] == [1]


def test_a_range_ends_as_it_began():
    """torch's fast ranges raise an error where a profiler started while they were open."""
    with ranges.Range("before"), torch.profiler.profile() as first:
        outer = ranges.Range("reaches into the next")
        outer.__enter__()
        with ranges.Range("within"):
            pass
        ranges.end_open_ranges()
    with torch.profiler.profile() as second:
        outer.__exit__(None, None, None)

    names = [{event.name for event in profiler.events()} for profiler in (first, second)]
    assert names == [{"reaches into the next", "within"}, set()]
