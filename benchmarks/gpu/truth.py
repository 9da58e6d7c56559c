"""The truth about one case: what its steps take when nothing watches."""

from __future__ import annotations

from benchmarks.gpu.case import Case
from benchmarks.gpu.graphed import graphed
from benchmarks.gpu.parts import Json
from benchmarks.gpu.setting import Setting
from benchmarks.gpu.timing import Effort, measure_steps
from benchmarks.gpu.training import Training


def truth(case: Case, setting: Setting, effort: Effort | None = None, as_graph: bool = False) -> Json:
    """Step times and memory of a case.

    Args:
        case: the model and how it is trained.
        setting: the device and the sizes.
        effort: how many steps to take; None for the usual.
        as_graph: replay the whole step as one CUDA graph.
    """
    if as_graph:
        setting.need_gpu("a CUDA graph")
    training = Training(case, setting)
    step = graphed(training) if as_graph else training.step
    return {"case": case.to_json(), "samples": training.samples, **measure_steps(step, setting, effort)}
