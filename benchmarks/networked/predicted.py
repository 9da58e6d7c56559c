"""The prediction of each point from one recording of a single process."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from benchmarks.networked.job import ENVIRONMENT
from benchmarks.networked.points import CORES, Point
from benchmarks.networked.runs import Run, median_ms

import stepscope
from stepscope.calibration import calibrate
from stepscope.graph import Graph, build_graph
from stepscope.verify.comparison import MeasuredRuns, middle_mean
from stepscope.verify.trials import Script, execute
from stepscope.verify.trials import TrialRun as Trial
from stepscope.verify.unrecorded import unrecorded
from stepscope.whatif import CHANGES, Prediction, parse_request, predict

WARMUP, STEPS = 5, 6
_RECORDINGS = 3


def recording(folder: Path, model: str) -> Path:
    """A capture of plain training, made unless it is there; the shortest of a few."""
    path = folder / f"{model}.stepscope"
    if path.exists():
        return path
    os.environ.update(ENVIRONMENT)
    script = Script(str(Path(__file__).with_name("train.py")), [model])
    made = [folder / f"{model}-{number}.stepscope" for number in range(_RECORDINGS)]
    for capture in made:
        execute(Trial(script, WARMUP, STEPS, capture=capture, label=model), lambda *_: None)
    shortest = min(made, key=lambda one: recorded_ms(graph_of(one)))
    shortest.rename(path)
    calibrate(stepscope.open(path, cache=False))
    return path


@cache
def graph_of(path: Path) -> Graph:
    """The graph of a capture."""
    return build_graph(stepscope.open(path, cache=False))


def recorded_ms(graph: Graph) -> float:
    """The mean of the recorded steps."""
    return float(graph.window.measured_ns.mean()) / 1e6


def prediction(path: Path, point: Point, unchanged: Sequence[Run]) -> Prediction:
    """The prediction of a point.

    Args:
        path: the recording.
        point: what to predict.
        unchanged: runs of as many processes without recording and without communication. By them
            the cost of recording is taken off; and the processes share this machine's caches, as
            on a cluster they would not. Sharing its cores is predicted.
    """
    share = max(1.0, point.topology.workers / CORES)
    graph = unrecorded(graph_of(path), _measured(unchanged, share))
    return predict(graph, [parse_request(text, CHANGES) for text in point.changes])


def _measured(unchanged: Sequence[Run], share: float) -> MeasuredRuns:
    """The step, were each process alone on its core."""
    optimizer = statistics.median(middle_mean(run.optimizer_ns) / 1e6 for run in unchanged) / share
    return MeasuredRuns(
        (median_ms(list(unchanged)) / share,), (0.0,), {"data_loading": 0.0, "optimizer": optimizer}
    )
