"""Reports each step of every torch optimizer of the process.

torch's own post-step hook runs inside the `Optimizer.step` range that torch writes to a trace, so a
step that ended there would cut that range in two. We therefore also wrap `step` of the optimizer
classes and report when it returns. The hook remains for a `step` that could not be wrapped: an
instance whose `step` a scheduler replaced before the watch was installed.
"""

import functools
import inspect
import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from itertools import chain
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as torch_optimizer

from stepscope.record.call_sites import entries, is_library, user_frames, variables
from stepscope.record.module_registry import ModuleRegistry
from stepscope.record.patch import ignoring, subclasses, undo
from stepscope.record.ranges import Range
from stepscope.record.torch_internals import AUTOGRAD, ENGINE, Function, is_captured, wrap

if TYPE_CHECKING:
    from stepscope.record.part_timer import PartTimer

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
        for cls in subclasses(_Optimizer):
            step = vars(cls).get("step")
            if isinstance(step, FunctionType) and (original := self._originals.get(step)):
                vars(original)["hooked"] = True  # torch has marked ours, and would wrap it again
                type.__setattr__(cls, "step", original)
        while self._replaced:  # and keep none of them alive
            optimizer, ours, original = self._replaced.pop()
            if vars(optimizer).get("step") is ours:
                optimizer.step = original

    def _wrap_future_classes(self) -> None:
        """torch passes each class's `step` through here when its first instance is created."""

        def profile_hook_step(step: Step) -> Step:
            self.has_seen_one = True
            return self._wrap(self._profile_hook_step(step))

        _Optimizer.profile_hook_step = staticmethod(profile_hook_step)

    def _wrap_known_classes(self) -> None:
        for cls in subclasses(_Optimizer):
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
            timer = None
            try:
                self._running.add(id(optimizer))
                timer = self.timer if self.timer and self.timer.optimizer_begins() else None
                with self._range_of(optimizer):
                    result = step(optimizer, *args, **kwargs)
            except BaseException:
                if timer:
                    timer.part_ends()
                raise
            finally:
                self._running.discard(id(optimizer))
            if timer:
                timer.work_follows()
            self._report(optimizer)
            if timer:
                timer.resume()
            return result

        self._originals[watched] = step
        return watched

    def _range_of(self, optimizer: Any) -> Any:
        """The range around a step; the step must go on whatever happens here."""
        with ignoring(Exception):
            return self.names.range_of(optimizer) if self.names else _NO_RANGE
        return _NO_RANGE

    def _after_step(self, optimizer: Any, args: object, kwargs: object) -> None:
        if not torch.compiler.is_compiling() and id(optimizer) not in self._running:
            self._wrap_replaced_step(optimizer)
            self._report(optimizer)

    def _report(self, optimizer: Any) -> None:
        if not (is_captured() or self._within_backward.takes(optimizer)):
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


_pass: Callable[[], int] = torch._C._current_graph_task_id


class BackwardSteps:
    """Calls `on_step(optimizer)` once for each backward pass in which optimizers stepped.

    `Tensor.register_post_accumulate_grad_hook` lets an optimizer update each weight as soon as its
    gradient is there. A profiler that starts or stops inside of the pass crashes torch, and the
    pass is part of the step: such steps are reported once the pass is over.

    The optimizer is the same for all passes that share one. Passes are watched from `watch` on, else from
    the first such step on, so that its pass is not reported.
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
        self.watch()
        self._stepped.append(optimizer)
        return True

    def watch(self) -> None:
        self._restore = self._restore or wrap(AUTOGRAD, ENGINE, self._watched)

    def close(self) -> None:
        self._on_step = lambda optimizer: None
        undo(self._restore)

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
        optimizer = next((optimizer for optimizer in stepped if optimizer in self._reported), stepped[-1])
        self._reported.add(optimizer)
        self._on_step(optimizer)


# -- names optimizers as the user names them, numbers them, and lists the modules that each updates
# torch names the range of a step by the class alone, which is the same for both optimizers of a GAN.

OPTIMIZER_RANGE = "stepscope.optimizer: "
_DEEPEST = 40  # frames that are searched
_LARGEST = 100  # a container in which an optimizer is searched
_WRAPS = ("optimizer", "_optimizer")  # as accelerate and Lightning hold the optimizer they wrap


class OptimizerNames:
    """The name of each optimizer: that of a variable that holds it, else its class.

    A variable that holds two of them in turn, as in a loop over optimizers or in a function that
    steps any, names neither. Among others that of the outermost caller counts, and of one caller's
    the longest, which says most.
    """

    def __init__(self) -> None:
        self._names: weakref.WeakKeyDictionary[Any, list[str]] = weakref.WeakKeyDictionary()
        self._labels: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._stepped = 0

    def range_of(self, optimizer: Any) -> Any:
        """The range of a step of this optimizer, a context manager."""
        if optimizer not in self._labels:
            self._names[optimizer] = list(_names(optimizer))
            self._stepped += 1
            self._name_all()
        return Range(self._labels[optimizer])

    def by_optimizer(self) -> dict[Any, str]:
        """The name of each optimizer that stepped; empty if one, as of a task, no longer lives."""
        labels = {optimizer: label[len(OPTIMIZER_RANGE) :] for optimizer, label in list(self._labels.items())}
        return labels if len(labels) == self._stepped else {}

    def _name_all(self) -> None:
        """Name every optimizer again: one more may show that a name is shared."""
        held = Counter(name for names in self._names.values() for name in set(names))
        seen: Counter[str] = Counter()
        for optimizer, names in list(self._names.items()):
            own = next((name for name in names if held[name] == 1), type(optimizer).__name__)
            seen[own] += 1
            label = own if seen[own] == 1 else f"{own}_{seen[own]}"
            self._labels[optimizer] = OPTIMIZER_RANGE + label


def _names(optimizer: Any) -> Iterator[str]:
    """The variables that hold the optimizer, the best name first."""
    callers: list[list[str]] = []
    for frame in user_frames(sys._getframe(1), _DEEPEST):
        if not is_library(frame.f_code.co_filename):
            names = [name for pair in variables(frame) for name in _places(*pair, optimizer)]
            callers.append(sorted(names, key=lambda name: ("." in name, -len(name))))
    return chain.from_iterable(reversed(callers))


def _places(name: str, held: Any, optimizer: Any) -> Iterator[str]:
    """Where a variable holds the optimizer: itself, in a wrapper, or in a container."""
    if _is_or_wraps(held, optimizer):
        yield name
    else:
        yield from (f"{name}.{key}" for key, part in entries(held, _LARGEST) if _is_or_wraps(part, optimizer))


def _is_or_wraps(held: Any, optimizer: Any) -> bool:
    own = (inspect.getattr_static(held, name, None) for name in _WRAPS)  # nothing of the program's is called
    return held is optimizer or any(one is optimizer for one in own)


class OptimizerOrder:
    """Numbers optimizers from 1 in the order of their first steps.

    An id alone is not enough: a sweep creates its next optimizer where the last one was.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self.last = 0  # the highest number so far

    def number(self, optimizer: Any) -> int:
        numbered = self._known.get(id(optimizer))
        if numbered is None or numbered[0]() is not optimizer:
            self.last += 1
            numbered = self._known[id(optimizer)] = weakref.ref(optimizer), self.last
        return numbered[1]

    def living(self) -> list[Any]:
        return [optimizer for held, _ in self._known.values() if (optimizer := held()) is not None]


NOT_UPDATED = ""


def updated_modules(labels: Mapping[Any, str], registry: ModuleRegistry) -> dict[str, list[str]]:
    """The paths of modules by the name of the optimizer that holds parameters of their own.

    Those that need gradients and that no optimizer holds are under `NOT_UPDATED`. Empty where the
    optimizers hold no parameter of the models, as flat ones of FSDP.
    """
    groups = [(label, optimizer.param_groups) for optimizer, label in list(labels.items())]
    held = {label: {id(tensor) for group in of for tensor in group["params"]} for label, of in groups}
    updated: dict[str, list[str]] = {label: [] for label in (*held, NOT_UPDATED)}
    for node in registry.nodes():
        own = [parameter for parameter in node.module._parameters.values() if parameter is not None]
        names = [label for label, ids in held.items() if any(id(parameter) in ids for parameter in own)]
        if not names and any(parameter.requires_grad for parameter in own):
            names = [NOT_UPDATED]
        for name in names:
            updated[name].append(node.path)
    return updated if any(updated[label] for label in held) else {}
