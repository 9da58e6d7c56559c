"""Hooks that report a program's activities to an `ActivityLog`, for as long as the run lasts.

They are a few: backward passes, optimizer steps, requests for batches, blocks without gradients,
`Module.train()` and saving. None is called for each module or operator, so that they cost a few
microseconds per step.
"""

import re
import sys
import threading
from collections.abc import Callable
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch
from torch.optim import optimizer as torch_optimizer
from torch.utils import _contextlib
from torch.utils.data import DataLoader, dataloader

from stepscope.record.call_sites import LIBRARIES, is_internal, user_frame, user_frames
from stepscope.record.optimizers import BackwardSteps, OptimizerOrder
from stepscope.record.patch import AfterImport, Hooks, holders
from stepscope.record.ranges import Range
from stepscope.record.recording import call_in_forked_children
from stepscope.record.run_shares.activity_log import (
    Activity,
    ActivityLog,
    Durations,
    NestedDurations,
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
_SAVING, _EVALUATING = "saving", "eval_mode"  # kinds of activities
_OF_CHECKPOINTS = "_update_best_and_save", "_save_none_monitor_checkpoint"  # of Lightning
_LIGHTNING = *_OF_CHECKPOINTS, "_save_checkpoint", "_remove_checkpoint"
# Functions that only save or evaluate, the outer ones first, as a library also spends time around the
# inner ones: by the module that defines them.
_OF_LIBRARIES = [
    ("transformers.trainer", _SAVING, "Trainer", ("_save_checkpoint", "save_model")),
    ("transformers.trainer", _EVALUATING, "Trainer", ("evaluate", "predict")),
    ("transformers.modeling_utils", _SAVING, "PreTrainedModel", ("save_pretrained",)),
    ("accelerate.accelerator", _SAVING, "Accelerator", ("save_state", "save_model")),
    *(
        row
        for package in ("lightning.pytorch", "pytorch_lightning")
        for row in (
            (f"{package}.callbacks.model_checkpoint", _SAVING, "ModelCheckpoint", _LIGHTNING),
            (f"{package}.trainer.trainer", _SAVING, "Trainer", ("save_checkpoint",)),
            (f"{package}.loops.evaluation_loop", _EVALUATING, "_EvaluationLoop", ("run",)),
        )
    ),
    ("deepspeed.runtime.engine", _SAVING, "DeepSpeedEngine", ("save_checkpoint", "save_16bit_model")),
    ("peft.peft_model", _SAVING, "PeftModel", ("save_pretrained",)),
    ("safetensors.torch", _SAVING, "", ("save_file", "save_model")),
    ("torch.distributed.checkpoint.state_dict_saver", _SAVING, "", ("save", "async_save", "save_state_dict")),
]
_RANGES = {"evaluation": "evaluation", "checkpointing": "checkpointing"}
# What the names of calling functions say; the nearest that says anything decides.
_EVALUATION = re.compile(r"(?i)eval|valid|predict|(^|_)(val|test|infer)(_|$)")
_ROLLOUT = re.compile(
    r"(?i)roll_?out|generat|collect|explor|episode|self_?play|(^|_)(play|act|sample|samples)(_|$)|"
    r"(get|select|choose|take|sample)_action"
)
_NEITHER = re.compile(r"(?i)train|(^|_)(fit|learn|update|optimi[sz]e|loss)(_|$)|^main$|^<module>$")
_DEEPEST = 30  # callers that are asked for their names


class ActivityHooks(Hooks):
    """Reports the activities of the thread that made it, until removed."""

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
        self.workers = WorkerTimes()
        self.on_workers: Callable[[], object] = lambda: None  # when some have been started
        self._restore = [
            torch_optimizer.register_optimizer_step_pre_hook(partial(self._stepped, log.begin_step)).remove,
            torch_optimizer.register_optimizer_step_post_hook(partial(self._stepped, log.end_step)).remove,
        ]
        self._wrap(AUTOGRAD, ENGINE, self._backward)
        self._within_backward = BackwardSteps(self._passed)
        self._within_backward.watch()
        self._restore.append(self._within_backward.close)
        self._wrap(DataLoader, "__iter__", self._iterate)
        self._wrap(_Batches, "__next__", self._batch)
        self._wrap(torch.nn.Module, "train", self._mode)
        self._wrap(torch.serialization, "save", partial(self._call, _SAVING), torch)
        for block in (torch.no_grad, torch.inference_mode):
            self._wrap(block, "__enter__", self._enter)
            self._wrap(block, "__exit__", self._exit)
        for row in _OF_LIBRARIES:
            watch = AfterImport(row[0], partial(self._watch_library, *row))
            self._restore.append(watch.remove)
            watch.install()
        call_in_forked_children(self.remove)

    def _watch_library(self, module: str, kind: str, holder: str, names: tuple[str, ...]) -> None:
        found: Any = sys.modules[module]
        found = getattr(found, holder, None) if holder else found
        for name in names:
            if original := getattr(found, name, None):
                first, *others = [found] if holder else holders(original, name)
                self._wrap(first, name, partial(self._call, kind), *others)

    def _wrap(self, holder: Any, name: str, ours: Function, *others: Any) -> None:
        """Call `ours` with the original and its arguments, on this thread."""

        def around(original: Function) -> Function:
            def hook(*args: Any, **kwargs: Any) -> Any:
                if threading.get_ident() != self._thread:
                    return original(*args, **kwargs)
                return ours(original, *args, **kwargs)

            return hook

        self._restore += wrap(holder, name, around, *others)

    @property
    def _counted(self) -> ActivityLog:
        """The log, with everything counted that was noted."""
        self._log.count_noted()
        return self._log

    # -- training

    def _backward(self, original: Function, *args: Any, **kwargs: Any) -> Any:
        self._log.note(self._log.begin_backward, None)
        try:
            return original(*args, **kwargs)
        finally:
            self._log.note(self._log.end_backward, None)

    def _stepped(self, noted: Function, optimizer: Any, *_: object) -> None:
        is_own = not (torch.compiler.is_compiling() or self._within_backward.takes(optimizer))
        if is_own and threading.get_ident() == self._thread:
            self._log.note(noted, self._stepping(optimizer))

    def _passed(self, optimizer: Any) -> None:
        """A backward pass in which optimizers stepped is over; their time is its own."""
        self._stepped(self._log.begin_step, optimizer)
        self._stepped(self._log.end_step, optimizer)

    def _stepping(self, optimizer: Any) -> SteppingOptimizer:
        known, number = self._optimizers.get(id(optimizer)), self._order.number(optimizer)
        if known is None or known.number != number:
            known = self._optimizers[id(optimizer)] = _stepping_optimizer(optimizer, number)
        return known

    # -- data loaders

    def _iterate(self, original: Function, loader: Any) -> Any:
        kept, begun = getattr(loader, "_iterator", None), self._log.now()
        iterator = original(loader)
        if iterator is not kept:
            self._log.note(self._log.loaded, (begun, True))
            if loader.num_workers:
                self.workers.started(loader, self._log.now() - begun)
                self.on_workers()
        return iterator

    def _batch(self, original: Function, iterator: Any) -> Any:
        yielded, workers = getattr(iterator, "_num_yielded", 1), getattr(iterator, "_num_workers", 0)
        begun = self._log.now()
        try:
            batch = original(iterator)
        except StopIteration:
            self.workers.stopping_ns += self._log.now() - begun if workers else 0
            raise
        self._log.note(self._log.loaded, (begun, yielded == 0))
        if workers:
            self.workers.received(yielded < workers, self._log.now() - begun)
        return batch

    # -- evaluation

    def _mode(self, original: Function, module: Any, *args: Any, **kwargs: Any) -> Any:
        if self._switching:
            return original(module, *args, **kwargs)
        self._switching = True
        try:
            return original(module, *args, **kwargs)
        finally:
            self._switching = False
            self._counted.mode_changed(None if module.training else self._place(_EVALUATING))

    def _enter(self, original: Function, block: Any) -> Any:
        # Ours comes first: were gradients off, a signal handler that raises in it would leave them off.
        activity = self._place("no_grad") if getattr(block, "mode", True) else None
        activity = activity if activity and self._counted.is_idle else None
        if activity:
            self._log.begin(activity)
        self._blocks.append((activity, self._range(activity)))
        return original(block)

    def _exit(self, original: Function, block: Any, *error: Any) -> Any:
        try:
            return original(block, *error)
        finally:
            if self._blocks:
                self._end(*self._blocks.pop())

    def _end(self, activity: Activity | None, marked: Any) -> None:
        if marked:
            marked.__exit__(None, None, None)
        if activity:
            self._log.note(self._log.end, activity)

    # -- functions that only save or evaluate

    def _call(self, kind: str, original: Function, *args: Any, **kwargs: Any) -> Any:
        activity, begins, marked = self._place(kind), True, None
        try:
            begins = activity is not None and self._counted.begin(activity)
            marked = self._range(activity)
            return original(*args, **kwargs)
        finally:  # one inside of another is at the same line where torch calls both
            self._end(activity if begins else None, marked)

    # -- ranges

    def _range(self, activity: Activity | None) -> Any:
        """An open range of a recorded step, named by the activity; None outside of recordings.

        In a program that does not train, blocks without gradients are its work, no evaluation.
        """
        if not self.marks or activity is None:
            return None
        counts = self._log.has_trained or activity.kind == "saving"
        kind = _RANGES.get(activity.stage, "block") if counts else "block"
        marked = Range(f"stepscope.{kind}: {activity.function} ({activity.file}:{activity.line})")
        marked.__enter__()
        return marked

    # -- places

    def _place(self, kind: str) -> Activity | None:
        """The activity of the line that called; None if torch itself begins a block."""
        frame: Any = sys._getframe(3)  # what called the function around ours
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

    Its place is the nearest line outside of libraries; of a block without gradients the nearest
    calling function whose name says so gives the purpose.
    """
    callers = list(user_frames(frame, _DEEPEST))
    names = [decorated, *(caller.f_code.co_name for caller in callers)]
    place = next((c for c in callers if not c.f_code.co_filename.startswith(LIBRARIES)), frame)
    purpose, function = _purpose(names) if kind == "no_grad" else (None, "")
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
    return SteppingOptimizer(type(optimizer).__name__, place, number)


# -- starts of workers of DataLoaders, and what they cost the training loop


class WorkerTimes:
    """What the training loop waits for in iterators with workers, ns."""

    def __init__(self) -> None:
        self.starts = 0  # iterators that start workers
        self.workers = 0  # of the iterator that has most
        self.starting_ns = 0  # until the workers are started
        self.first = self.first_ns = 0  # batches, the first of each worker, and the time for these
        self.stopping_ns = 0  # at the end of each, until its workers have stopped
        self.batches = self.waiting_ns = 0  # later ones, and the time for these
        self._loaders = OptimizerOrder()
        self.loaders = 0  # that start workers
        self._datasets: set[int] = set()

    def describe(self) -> dict[str, int] | None:
        """For manifest.json; None if nothing started workers.

        `datasets` are those of the loaders: fewer if a loader is made for every epoch.
        """
        if not self.starts:
            return None
        counts = {name: count for name, count in vars(self).items() if not name.startswith("_")}
        return {**counts, "datasets": len(self._datasets)}

    def started(self, loader: Any, spent_ns: int) -> None:
        self.starts += 1
        self.starting_ns += spent_ns
        self.workers = max(self.workers, loader.num_workers)
        self.loaders = max(self.loaders, self._loaders.number(loader))
        self._datasets.add(id(loader.dataset))

    def received(self, is_first: bool, spent_ns: int) -> None:
        """Each worker makes its first batch as soon as it has started."""
        if is_first:
            self.first += 1
            self.first_ns += spent_ns
        else:
            self.batches += 1
            self.waiting_ns += spent_ns


# torch.compile must not compile what its own compiled functions lead to.
hide_methods(ActivityLog, Activity, SteppingOptimizer, OptimizerOrder, Durations, NestedDurations)
hide_methods(ActivityHooks, BackwardSteps, WorkerTimes)
for _function in (user_frame, is_internal, _stepping_optimizer):
    hide_from_compiler(_function.__code__)
