"""Reports each step of every torch optimizer of the process.

torch's own post-step hook runs inside the `Optimizer.step` range that torch writes to a trace, so a
step that ended there would cut that range in two. We therefore also wrap `step` of the optimizer
classes and report when it returns. The hook remains for a `step` that could not be wrapped: an
instance whose `step` a scheduler replaced before the watch was installed.
"""

import functools
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer

if TYPE_CHECKING:
    from stepscope.record.optimizer_names import OptimizerNames
    from stepscope.record.part_timer import PartTimer

from stepscope.record.torch_internals import AUTOGRAD, ENGINE, Function, wrap

Step = Callable[..., Any]
_NO_RANGE = nullcontext()
_Optimizer: Any = torch_optimizer.Optimizer


class OptimizerWatch:
    """Calls `on_step(optimizer)` after every optimizer step, until closed.

    Steps within a backward pass count once for the pass, when it is over.

    `has_seen_one` is whether an optimizer has been created, which may step later; `traced_one`
    whether one steps in a function that torch.compile has compiled, which nothing reports. `timer`
    measures steps with what torch does around them, and `names` has the range of each in a trace.
    """

    def __init__(self, on_step: Callable[[Any], None]) -> None:
        self._on_step = on_step
        self._within_backward = BackwardSteps(on_step)
        self._open = True
        self.has_seen_one = self.traced_one = False
        self.timer: PartTimer | None = None
        self.names: OptimizerNames | None = None
        self._running: set[int] = set()
        self._originals: dict[Step, Step] = {}
        self._replaced: list[tuple[Any, Step, Step]] = []
        self._hook = torch_optimizer.register_optimizer_step_post_hook(self._after_step)
        self._profile_hook_step = _Optimizer.profile_hook_step
        self._wrap_future_classes()
        self._wrap_known_classes()

    def close(self) -> None:
        if not self._open:
            return
        self._open = False
        self._hook.remove()
        self._within_backward.close()
        _Optimizer.profile_hook_step = staticmethod(self._profile_hook_step)
        for cls in _subclasses(_Optimizer):
            step = vars(cls).get("step")
            if isinstance(step, FunctionType) and (original := self._originals.get(step)):
                vars(original)["hooked"] = True  # torch has marked ours, and would wrap it again
                type.__setattr__(cls, "step", original)
        for optimizer, ours, original in self._replaced:
            if vars(optimizer).get("step") is ours:
                optimizer.step = original

    def _wrap_future_classes(self) -> None:
        """torch passes each class's `step` through here when its first instance is created."""

        def profile_hook_step(step: Step) -> Step:
            self.has_seen_one = True
            return self._wrap(self._profile_hook_step(step))

        _Optimizer.profile_hook_step = staticmethod(profile_hook_step)

    def _wrap_known_classes(self) -> None:
        for cls in _subclasses(_Optimizer):
            step: Any = vars(cls).get("step")
            if getattr(step, "hooked", False):
                self.has_seen_one = True
                type.__setattr__(cls, "step", self._wrap(step))

    def _wrap(self, step: Any) -> Step:
        def note_traced() -> None:
            self.traced_one = True

        # As torch.compiler.assume_constant_result, which imports Dynamo: it is called once, while
        # Dynamo traces.
        vars(note_traced)["_dynamo_marked_constant"] = True

        @functools.wraps(step)
        def watched(optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            # A subclass may call super().step(): only the outermost call counts.
            if torch.compiler.is_compiling():
                note_traced()
                return step(optimizer, *args, **kwargs)
            if not self._open or id(optimizer) in self._running:
                return step(optimizer, *args, **kwargs)
            self._running.add(id(optimizer))
            timer = self.timer
            timed = timer is not None and timer.optimizer_begins()
            try:
                with self._range_of(optimizer):
                    result = step(optimizer, *args, **kwargs)
            except BaseException:
                self._running.discard(id(optimizer))
                if timer is not None and timed:
                    timer.part_ends()
                raise
            if timer is not None and timed:
                timer.work_follows()
            self._running.discard(id(optimizer))
            self._report(optimizer)
            if timer is not None and timed:
                timer.resume()
            return result

        self._originals[watched] = step
        return watched

    def _range_of(self, optimizer: Any) -> Any:
        """The range around a step; the step must go on whatever happens here."""
        try:
            return self.names.range_of(optimizer) if self.names else _NO_RANGE
        except Exception:
            return _NO_RANGE

    def _after_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        if not torch.compiler.is_compiling() and id(optimizer) not in self._running:
            self._wrap_replaced_step(optimizer)
            self._report(optimizer)

    def _report(self, optimizer: Any) -> None:
        if not self._within_backward.takes(optimizer):
            self._on_step(optimizer)

    def _wrap_replaced_step(self, optimizer: Any) -> None:
        """Watch an instance with a `step` of its own from its next step on."""
        replaced = vars(optimizer).get("step")
        if replaced is None:
            return

        watched = self._wrap(lambda _, *args, **kwargs: replaced(*args, **kwargs))

        @functools.wraps(replaced)
        def step(*args: Any, **kwargs: Any) -> Any:
            return watched(optimizer, *args, **kwargs)

        optimizer.step = step
        self._replaced.append((optimizer, step, replaced))


def _subclasses(cls: type) -> Iterator[type]:
    subclasses: list[type] = type.__subclasses__(cls)
    for subclass in subclasses:
        yield subclass
        yield from _subclasses(subclass)


_pass: Callable[[], int] = getattr(torch._C, "_current_graph_task_id", lambda: -1)


class BackwardSteps:
    """Calls `on_step(optimizer)` once for each backward pass in which optimizers stepped.

    `Tensor.register_post_accumulate_grad_hook` lets an optimizer update each weight as soon as its
    gradient is there. A profiler that starts or stops inside of the pass crashes torch, and the
    pass is part of the step: such steps are reported once the pass is over.

    The optimizer is the same for all passes that share one. Passes are watched from the first such
    step on, so that the first pass is not reported.
    """

    def __init__(self, on_step: Callable[[Any], None]) -> None:
        self._on_step = on_step
        self._stepped: list[Any] = []
        self._reported: weakref.WeakSet[Any] = weakref.WeakSet()
        self._restore: list[Callable[[], None]] = []

    def takes(self, optimizer: Any) -> bool:
        """Whether this step of an optimizer runs within a backward pass, and is reported later."""
        if _pass() < 0:
            return False
        if self._restore:
            self._stepped.append(optimizer)
        else:
            self._restore = wrap(AUTOGRAD, ENGINE, self._watched)
        return True

    def close(self) -> None:
        self._on_step = lambda optimizer: None
        for restore in self._restore:
            restore()

    def _watched(self, engine: Function) -> Function:
        def watched(*args: Any, **kwargs: Any) -> Any:
            self._stepped = [] if _pass() < 0 else self._stepped  # an earlier pass may have failed
            result = engine(*args, **kwargs)
            if self._stepped and _pass() < 0:
                self._report()
            return result

        return watched

    def _report(self) -> None:
        stepped, self._stepped = self._stepped, []
        reported = (optimizer for optimizer in stepped if optimizer in self._reported)
        optimizer = next(reported, stepped[-1])
        self._reported.add(optimizer)
        self._on_step(optimizer)
