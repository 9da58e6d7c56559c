"""The steps of a JAX program: the function that returns what its next call takes ends them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stepscope.capture.batch_size.jax_framework import JaxFramework
from stepscope.capture.batch_size.measured_steps import Steps
from stepscope.capture.batch_size.request import Request
from stepscope.capture.batch_size.step_counts import StepCounts
from stepscope.capture.jax.jax_step_detector import JaxStepDetector
from stepscope.capture.jax.jit_calls import JitCall, JitCallWatch

Json = dict[str, Any]


class JaxSteps(Steps):
    """Measured steps that know the program's compiled functions.

    Raises:
        CaptureError: this version of JAX has no hook for calls.
    """

    why_no_steps = "no function under jax.jit was called repeatedly in its process"

    def __init__(self, request: Request, finish: Callable[[Json], object]) -> None:
        self._jax = JaxFramework()
        super().__init__(request, finish, self._jax, StepCounts())
        self._detector = JaxStepDetector()
        self._boundary: object = None
        self._outputs: Any = ()
        JitCallWatch(self._returned)

    @property
    def trains(self) -> bool:
        """Whether a compiled function was called."""
        return self._boundary is not None

    def ended(self) -> None:
        """A training step ends here; the next one may not run further ahead."""
        self._jax.step_ended(self._outputs)
        super().ended()

    def _returned(self, call: JitCall) -> None:
        self._jax.returned(call)
        self._outputs = call.outputs
        ends = self._detector.advance(call.name, call.inputs, call.outputs)
        if self._boundary is not self._detector.boundary:
            self._boundary = self._detector.boundary
            self.restart()
        if ends and self.detects:
            self.ended()
