"""The steps of a PyTorch program: its optimizers end them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.capture.batch_size.measured_steps import Steps
from stepscope.capture.batch_size.request import Request
from stepscope.capture.batch_size.step_counts import StepCounts
from stepscope.capture.batch_size.torch_framework import TorchFramework
from stepscope.capture.optimizers import OptimizerWatch
from stepscope.capture.step_detector import StepDetector

Json = dict[str, Any]
WHY_NO_STEPS = "no optimizer stepped in its process"


class TorchSteps(Steps):
    """Measured steps that know the program's optimizers."""

    why_no_steps = WHY_NO_STEPS

    def __init__(self, request: Request, finish: Callable[[Json], object]) -> None:
        counts = StepCounts()
        self._torch = TorchFramework(request, counts)
        super().__init__(request, finish, self._torch, counts)
        self._optimizers: dict[int, Any] = {}
        self.recording = self._torch.recording

    def begin_iterations(self, model: Any, inputs: Any) -> None:
        """Iterations of this model on these inputs follow."""
        super().begin_iterations(model, inputs)
        if self.recording:
            self.recording.registry.add_root(model, "model")
            self.recording.inputs = inputs

    @property
    def trains(self) -> bool:
        """Whether an optimizer has stepped."""
        return bool(self._optimizers)

    def optimizer_stepped(self, optimizer: Any) -> None:
        """An optimizer has stepped, which may or may not end the training step.

        With one more optimizer than was known, what went before were no whole steps.
        """
        if id(optimizer) not in self._optimizers:
            self.restart()
        self._optimizers[id(optimizer)] = optimizer
        if self.recording:
            self.recording.optimizers = self._optimizers


def watch_optimizers(steps: Any) -> Any:
    """Report the steps of all optimizers to `steps`, and the ends of training steps."""
    detector = StepDetector()

    def stepped(optimizer: Any) -> None:
        steps.optimizer_stepped(optimizer)
        if detector.advance(optimizer) and steps.detects:
            steps.ended()

    OptimizerWatch(stepped)
    return steps
