"""The steps of a JAX program: the function that returns what its next call takes ends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.capture.batch_size.batch_samples import BatchSamples
from stepscope.capture.batch_size.jax_framework import JaxFramework
from stepscope.capture.batch_size.measured_steps import Steps
from stepscope.capture.batch_size.request import Request
from stepscope.capture.batch_size.step_counts import StepCounts
from stepscope.capture.jax.jax_step_detector import UNSURE_STEPS, JaxStepDetector
from stepscope.capture.jax.jit_calls import JitCall, JitCallWatch

Json = dict[str, Any]


class JaxSteps(Steps):
    """Measured steps that know the program's compiled functions.

    Raises:
        CaptureError: this version of JAX has no hook for calls.
    """

    why_no_steps = "no function under jax.jit was called repeatedly in its process"

    def __init__(self, request: Request, finish: Callable[[Json], object]) -> None:
        counts = StepCounts()
        self._jax = JaxFramework(request)
        super().__init__(request, finish, self._jax, counts)
        self._batches = BatchSamples(counts, request.batch)
        self._detector = JaxStepDetector()
        self._boundary: object = None
        self._outputs: Any = ()
        JitCallWatch(self._returned)

    @property
    def trains(self) -> bool:
        """Whether a compiled function was called."""
        return self._boundary is not None

    @property
    def unsure_steps(self) -> int:
        """More steps where the function that ends them is not known to train."""
        return 0 if self._detector.is_sure else UNSURE_STEPS

    def restart(self) -> None:
        """Another function ends the steps: what was measured were parts of them."""
        self.forget_measured()
        super().restart()

    def ended(self) -> None:
        """A training step ends here; the next one may not run further ahead."""
        self._jax.step_ended(self._outputs)
        self._batches.step_ended()
        super().ended()

    def _returned(self, call: JitCall) -> None:
        if self.is_timing:
            self._batches.returned_again(call)
        else:
            self._jax.returned(call)
            self._batches.returned(call)
        self._outputs = call.outputs
        ends = self._detector.advance(call.name, call.inputs, call.outputs)
        if self._boundary is not self._detector.boundary:
            self._boundary = self._detector.boundary
            self.restart()
        if ends and self.detects:
            self.ended()
