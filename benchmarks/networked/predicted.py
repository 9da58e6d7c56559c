"""The prediction of each point from one recording of a single process."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.networked.job import ENVIRONMENT
from benchmarks.networked.points import CORES, Point
from benchmarks.networked.runs import Run

import stepscope
from stepscope.graph import Graph, build_graph
from stepscope.models.calibration.calibration import calibrate
from stepscope.models.verify.comparison import MeasuredRuns, middle_mean, unrecorded
from stepscope.models.verify.trials import TrialRun as Trial
from stepscope.models.verify.trials import execute
from stepscope.models.whatif import CHANGES, Prediction, parse_request, predict
from stepscope.models.whatif.change import Request
from stepscope.models.whatif.prediction import Baseline
from stepscope.record.script_runner import Program
from stepscope.trace.cache_folder import FOLDER_VARIABLE

WARMUP, STEPS = 5, 6
_RECORDINGS = 3


@cache
def recording(folder: Path, model: str) -> Path:
    """A capture of plain training, and a calibration; both are made unless they are there."""
    path = folder / f"{model}.stepscope"
    os.environ.update(ENVIRONMENT, **{FOLDER_VARIABLE: str(folder.resolve())})
    if not path.exists():
        _record(folder, model, path)
    calibrate(stepscope.open(path, cache=False))
    return path


def _record(folder: Path, model: str, path: Path) -> None:
    script = Program(str(Path(__file__).with_name("train.py")), [model])
    made = [folder / f"{model}-{number}.stepscope" for number in range(_RECORDINGS)]
    for capture in made:
        execute(Trial(script, WARMUP, STEPS, capture=capture, label=model), lambda *_: None)
    shortest = min(made, key=lambda one: recorded_ms(graph_of(one)))
    shortest.rename(path)


@cache
def graph_of(path: Path) -> Graph:
    """The graph of a capture."""
    return build_graph(stepscope.open(path, cache=False))


def recorded_ms(graph: Graph) -> float:
    """The mean of the recorded steps."""
    return float(graph.window.measured_ns.mean()) / 1e6


def prediction(path: Path, point: Point, runs: Sequence[Run]) -> Prediction:
    """The prediction of a point.

    Args:
        path: the recording.
        point: what to predict.
        runs: the measured runs of the point. Only the unchanged steps around them are used: by them
            the cost of recording is taken off; and the processes share this machine's caches, as
            on a cluster they would not. Sharing its cores is predicted.
    """
    return predict(_unrecorded(path, point, runs), _requests(point.changes))


def predicted_parts(path: Path, point: Point, runs: Sequence[Run]) -> tuple[float, float, float]:
    """The predicted step, the CPU time of its training loop, and its waits for a core, ms."""
    graph = _unrecorded(path, point, runs)
    # The last change is `shared_cores`: what it adds to the loop are waits.
    cpu, both = (_loop_ms(graph, changes) for changes in (point.changes[:-1], point.changes))
    step = predict(graph, _requests(point.changes)).predicted_step_ms
    return step, cpu, both - cpu


def _loop_ms(graph: Graph, changes: Sequence[str]) -> float:
    """The mean time of the tasks of the training loop and the gaps after them, ms."""
    after = Baseline(graph).predict_time(_requests(changes))[0].graph
    main = (after.threads["main"] > 0)[after.tasks["thread"]]
    total = (after.tasks["duration_ns"] + after.tasks["gap_ns"])[main].sum()
    return float(total) / len(after.window.steps) / 1e6


def _requests(changes: Sequence[str]) -> list[Request]:
    return [parse_request(text, CHANGES) for text in changes]


def _unrecorded(path: Path, point: Point, runs: Sequence[Run]) -> Graph:
    share = max(1.0, point.topology.workers / CORES)
    return unrecorded(graph_of(path), _unchanged(runs, share))


def _unchanged(runs: Sequence[Run], share: float) -> MeasuredRuns:
    """The unchanged step, were each process alone on its core."""
    step, optimizer = (
        statistics.median(middle_mean(run.unchanged[name]) for run in runs) / 1e6 / share
        for name in ("steps_ns", "optimizer_ns")
    )
    return MeasuredRuns((step,), (0.0,), {"data_loading": 0.0, "optimizer": optimizer})
