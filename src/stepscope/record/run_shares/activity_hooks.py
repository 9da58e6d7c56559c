"""Hooks that report a program's activities to an `ActivityLog`, for as long as the run lasts.

They are a few: backward passes, optimizer steps, requests for batches, blocks without gradients,
`Module.train()` and saving. None is called for each module or operator, so that they cost a few
microseconds per step.
"""

import functools
import re
import sys
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils import _contextlib
from torch.utils.data import DataLoader, dataloader

from stepscope.record.call_sites import LIBRARIES, is_internal, user_frame, user_frames
from stepscope.record.optimizer_names import OptimizerOrder
from stepscope.record.patch import AfterImport, undo
from stepscope.record.ranges import Range
from stepscope.record.recording import call_in_forked_children
from stepscope.record.run_shares.activity_log import (
    Activity,
    ActivityLog,
    DurationHistogram,
    SteppingOptimizer,
)
from stepscope.record.torch_internals import (
    AUTOGRAD,
    ENGINE,
    CompilerPaused,
    Function,
    hide_from_compiler,
    hide_methods,
    wrap,
)

_Batches: Any = dataloader._BaseDataLoaderIter
_DECORATOR = _contextlib.__file__
_MOST_PLACES = 500  # a program may generate code
# Functions that save, by the module that defines them. Packages re-export them under other names.
_SAVING = {
    "safetensors.torch": ("save_file", "save_model"),
    "torch.distributed.checkpoint.state_dict_saver": ("save", "async_save", "save_state_dict"),
}
_RANGES = {"evaluation": "evaluation", "checkpointing": "checkpointing"}
# What the names of calling functions say; the nearest that says anything decides.
_EVALUATION = re.compile(r"(?i)eval|valid|predict|(^|_)(val|test|infer)(_|$)")
_ROLLOUT = re.compile(
    r"(?i)roll_?out|generat|collect|explor|episode|self_?play|(^|_)(play|act|sample|samples)(_|$)|"
    r"(get|select|choose|take|sample)_action"
)
_NEITHER = re.compile(r"(?i)train|(^|_)(fit|learn|update|optimi[sz]e|loss)(_|$)|^main$|^<module>$")
_DEEPEST = 30  # callers that are asked for their names


class ActivityHooks:
    """Reports the activities of the thread that made it, until closed."""

    def __init__(self, log: ActivityLog) -> None:
        self._log = log
        self._thread = threading.get_ident()
        self._places: dict[tuple[int, int, str], tuple[CodeType, Activity | None]] = {}
        self.marks = False  # whether activities are ranges in the trace that is being recorded
        # Open blocks without gradients and their ranges, outermost first.
        self._blocks: list[tuple[Activity | None, Any]] = []
        self._order, self._optimizers = OptimizerOrder(), dict[int, SteppingOptimizer]()
        self.optimizers = self._order.living  # those that have stepped
        self._switching = False
        self.workers = WorkerWatch(log.now)
        self._restore = [
            self.workers.detach,
            *wrap(AUTOGRAD, ENGINE, self._backward),
            *wrap(_Batches, "__next__", self._batch),
            *wrap(_Batches, "__init__", self._loader),
            *wrap(torch.nn.Module, "train", self._mode),
            *wrap(torch.serialization, "save", self._saving, torch),
        ]
        for block in (torch.no_grad, torch.inference_mode):
            self._restore += wrap(block, "__enter__", self._enter)
            self._restore += wrap(block, "__exit__", self._exit)
        self._restore += [
            torch_optimizer.register_optimizer_step_pre_hook(self._optimizer_begins).remove,
            torch_optimizer.register_optimizer_step_post_hook(self._optimizer_ended).remove,
        ]
        for module, names in _SAVING.items():
            watch = AfterImport(module, functools.partial(self._watch_saving, module, names))
            self._restore.append(watch.remove)
            watch.install()
        call_in_forked_children(self.detach)

    def detach(self) -> None:
        undo(self._restore)

    def _watch_saving(self, module: str, names: tuple[str, ...]) -> None:
        for name in names:
            if hasattr(sys.modules[module], name):
                self._restore += wrap(sys.modules[module], name, self._saving)

    @property
    def _counted(self) -> ActivityLog:
        """The log, with everything counted that was noted."""
        self._log.count_noted()
        return self._log

    def _is_elsewhere(self) -> bool:
        return threading.get_ident() != self._thread

    # -- training

    def _backward(self, original: Function) -> Function:
        def backward(*args: Any, **kwargs: Any) -> Any:
            if self._is_elsewhere():
                return original(*args, **kwargs)
            self._log.note(self._log.begin_backward, None)
            try:
                return original(*args, **kwargs)
            finally:
                self._log.note(self._log.end_backward, None)

        return backward

    def _optimizer_begins(self, optimizer: Any, args: object, kwargs: object) -> None:
        if not torch.compiler.is_compiling() and not self._is_elsewhere():
            self._log.note(self._log.begin_step, self._stepping(optimizer))

    def _optimizer_ended(self, optimizer: Any, args: object, kwargs: object) -> None:
        if not torch.compiler.is_compiling() and not self._is_elsewhere():
            self._log.note(self._log.end_step, self._stepping(optimizer))

    def _stepping(self, optimizer: Any) -> SteppingOptimizer:
        last, number = self._order.last, self._order.number(optimizer)
        if number > last:
            self._optimizers[id(optimizer)] = _stepping_optimizer(optimizer, number)
        return self._optimizers[id(optimizer)]

    # -- data loaders

    def _batch(self, original: Function) -> Function:
        def next_batch(iterator: Any) -> Any:
            if self._is_elsewhere():
                return original(iterator)
            starts = getattr(iterator, "_num_yielded", 1) == 0
            return self._loading(starts, original, iterator)

        return next_batch

    def _loader(self, original: Function) -> Function:
        def loader(iterator: Any, *args: Any, **kwargs: Any) -> Any:
            if self._is_elsewhere() or not self._counted.is_idle:
                return original(iterator, *args, **kwargs)
            return self._loading(True, original, iterator, *args, **kwargs)

        return loader

    def _loading(self, starts: bool, original: Function, *args: Any, **kwargs: Any) -> Any:
        has_batch = False
        self._log.note(self._log.begin_loading, starts)
        try:
            result = original(*args, **kwargs)
            has_batch = True
            return result
        finally:
            self._log.note(self._log.end_loading, has_batch)

    # -- evaluation

    def _mode(self, original: Function) -> Function:
        def train(module: Any, *args: Any, **kwargs: Any) -> Any:
            if self._switching or self._is_elsewhere():
                return original(module, *args, **kwargs)
            self._switching = True
            try:
                return original(module, *args, **kwargs)
            finally:
                self._switching = False
                is_eval = not module.training
                self._counted.mode_changed(self._place("eval_mode") if is_eval else None)

        return train

    def _enter(self, original: Function) -> Function:
        def __enter__(block: Any) -> Any:
            result = original(block)
            if not self._is_elsewhere():
                activity = None
                if not torch.is_grad_enabled() and self._counted.is_idle:
                    activity = self._place("no_grad")
                if activity:
                    self._log.begin(activity)
                self._blocks.append((activity, self._range(activity)))
            return result

        return __enter__

    def _exit(self, original: Function) -> Function:
        def __exit__(block: Any, *error: Any) -> Any:
            if self._blocks and not self._is_elsewhere():
                activity, marked = self._blocks.pop()
                if marked:
                    marked.__exit__(None, None, None)
                if activity:
                    self._counted.end(activity)
            return original(block, *error)

        return __exit__

    # -- saving

    def _saving(self, original: Function) -> Function:
        def save(*args: Any, **kwargs: Any) -> Any:
            if self._is_elsewhere():
                return original(*args, **kwargs)
            activity = self._place("saving")
            if activity is None:
                return original(*args, **kwargs)
            self._counted.begin_nested(activity)
            marked = self._range(activity)
            try:
                return original(*args, **kwargs)
            finally:
                if marked:
                    marked.__exit__(None, None, None)
                self._counted.end_nested(activity)

        return save

    # -- ranges

    def _range(self, activity: Activity | None) -> Any:
        """An open range of a recorded step, named by the activity; None outside of recordings.

        In a program that does not train, blocks without gradients are its work, no evaluation.
        """
        if not self.marks or activity is None:
            return None
        if self._log.has_trained or activity.kind == "saving":
            kind = _RANGES.get(activity.stage, "block")
        else:
            kind = "block"
        marked = Range(f"stepscope.{kind}: {activity.function} ({activity.file}:{activity.line})")
        marked.__enter__()
        return marked

    # -- places

    def _place(self, kind: str) -> Activity | None:
        """The activity of the line that called; None if torch itself begins a block."""
        frame: Any = sys._getframe(2)
        decorator = None
        if kind != "no_grad":
            frame = user_frame(frame)
        elif frame.f_code.co_filename == _DECORATOR:
            decorator, frame = frame, frame.f_back
        if frame is None:
            return None
        place = self._places.get((id(frame.f_code), frame.f_lineno, kind))
        return place[1] if place else self._new_place(kind, frame, decorator)

    def _new_place(self, kind: str, frame: FrameType, decorator: FrameType | None) -> Activity | None:
        if len(self._places) >= _MOST_PLACES:
            return None
        function = decorator.f_locals.get("func") if decorator else None
        activity = None
        with CompilerPaused():
            if not is_internal(frame.f_code.co_filename):
                activity = activity_at(kind, frame, getattr(function, "__name__", ""))
        # The code is kept alive with its id; hashing the code itself takes microseconds.
        self._places[id(frame.f_code), frame.f_lineno, kind] = frame.f_code, activity
        return activity


def activity_at(kind: str, frame: FrameType, decorated: str = "") -> Activity:
    """An activity that begins in `frame`.

    Its place is the nearest line outside of libraries; the nearest calling function whose name
    says so gives the purpose.
    """
    callers = list(user_frames(frame, _DEEPEST))
    names = [decorated, *(caller.f_code.co_name for caller in callers)]
    place = next((c for c in callers if not c.f_code.co_filename.startswith(LIBRARIES)), frame)
    purpose, function = _purpose(names)
    return Activity(
        kind, function or decorated or place.f_code.co_name, place.f_code.co_filename, place.f_lineno, purpose
    )


def _purpose(names: list[str]) -> tuple[str | None, str]:
    """`evaluation` or `rollout`, and the name that says so."""
    for name in names:
        if _EVALUATION.search(name):
            return "evaluation", name
        if _ROLLOUT.search(name):
            return "rollout", name
        if _NEITHER.search(name):
            break
    return None, ""


def _stepping_optimizer(optimizer: Any, number: int) -> SteppingOptimizer:
    with CompilerPaused():
        place = activity_at("optimizer", sys._getframe(1))
    name = type(optimizer).__name__
    return SteppingOptimizer(name, place.function, place.file, place.line, number)


# -- starts of workers of DataLoaders, and what they cost the training loop


@dataclass
class WorkerTimes:
    """What the training loop waits for in iterators with workers, ns."""

    starts: int = 0  # iterators that start workers
    workers: int = 0  # of the iterator that has most
    starting_ns: int = 0  # until the workers are started
    first: int = 0  # the first batch of each worker
    first_ns: int = 0  # for these
    stopping_ns: int = 0  # at the end of each, until its workers have stopped
    batches: int = 0  # later ones
    waiting_ns: int = 0  # for these


class WorkerWatch:
    """Measures the starts of workers in the thread that made it, until it detaches.

    Args:
        now: the clock of the run, ns.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._thread = threading.get_ident()
        self._times = WorkerTimes()
        self._loaders: weakref.WeakSet[Any] = weakref.WeakSet()
        self._made = 0
        self._datasets: set[int] = set()
        self._restore = [*wrap(DataLoader, "__iter__", self._epoch), *wrap(_Batches, "__next__", self._batch)]

    def detach(self) -> None:
        undo(self._restore)

    def describe(self) -> dict[str, int] | None:
        """For manifest.json; None if nothing started workers.

        `loaders` are those that did, `datasets` theirs: fewer if a loader is made for every epoch.
        """
        if not self._times.starts:
            return None
        return {**vars(self._times), "loaders": self._made, "datasets": len(self._datasets)}

    def _epoch(self, original: Function) -> Function:
        def __iter__(loader: Any) -> Any:
            if not loader.num_workers or threading.get_ident() != self._thread:
                return original(loader)
            before, begun = getattr(loader, "_iterator", None), self._now()
            iterator = original(loader)
            if iterator is not before:
                self._started(loader, self._now() - begun)
            return iterator

        return __iter__

    def _started(self, loader: Any, spent_ns: int) -> None:
        self._times.starts += 1
        self._times.starting_ns += spent_ns
        self._times.workers = max(self._times.workers, loader.num_workers)
        if loader not in self._loaders:
            self._loaders.add(loader)
            self._made += 1
            self._datasets.add(id(loader.dataset))

    def _batch(self, original: Function) -> Function:
        def next_batch(iterator: Any) -> Any:
            if not getattr(iterator, "_num_workers", 0) or threading.get_ident() != self._thread:
                return original(iterator)
            # Each worker makes its first batch as soon as it has started.
            is_first, begun = iterator._num_yielded < iterator._num_workers, self._now()
            try:
                result = original(iterator)
            except StopIteration:
                self._times.stopping_ns += self._now() - begun
                raise
            self._received(is_first, self._now() - begun)
            return result

        return next_batch

    def _received(self, is_first: bool, spent_ns: int) -> None:
        if is_first:
            self._times.first += 1
            self._times.first_ns += spent_ns
        else:
            self._times.batches += 1
            self._times.waiting_ns += spent_ns


# torch.compile must not compile what its own compiled functions lead to.
hide_methods(
    ActivityLog, Activity, SteppingOptimizer, OptimizerOrder, DurationHistogram, ActivityHooks, WorkerWatch
)
for _function in (user_frame, is_internal, _stepping_optimizer):
    hide_from_compiler(_function.__code__)
