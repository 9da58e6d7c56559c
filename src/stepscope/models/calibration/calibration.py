"""A calibration: times of single operators on one machine, its file, and what it lacks for a trace.

The operators of a script count if they are outermost; those that they call are part of them. What
is missing is measured in a child process, since this one loads no torch."""

import datetime
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask, Times
from stepscope.base.parallel import own_command
from stepscope.base.typed_data import decode
from stepscope.base.unfinished_files import unfinished_file
from stepscope.errors import ChangeError
from stepscope.trace.cache_folder import cache_folder
from stepscope.trace.nesting import inherit, outermost
from stepscope.trace.recorded_steps import QUIET
from stepscope.trace.row_order import inverse
from stepscope.trace.trace import Metadata, Trace

Kind = TypeVar("Kind")
_ATEN = "aten::"
_EINSUM = "aten::einsum"  # its equation is not recorded; the product inside it has sizes
_KEYS = ("Input Dims", "Input Strides", "Input type", "Concrete Inputs")


@dataclass(frozen=True)
class Operator:
    """One call of an operator."""

    name: str  # without `aten::`
    # for each input: sizes of a tensor, a list of sizes for a list of tensors, else empty
    dims: tuple[Any, ...]
    strides: tuple[Any, ...]
    types: tuple[str, ...]  # `float`, `long int`, `Scalar`, `TensorList`, …, empty for None
    values: tuple[str, ...]  # values of inputs that are not tensors, as recorded

    @cached_property
    def signature(self) -> str:
        """The call as text; calls with the same signature do the same work."""
        return json.dumps(
            [self.name, self.dims, self.strides, self.types, self.values], separators=(",", ":")
        )

    @cached_property
    def floats(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of its FP32 inputs, in order."""
        return tuple(tuple(size) for size, kind in zip(self.dims, self.types, strict=True) if kind == "float")


@dataclass(frozen=True, eq=False)
class ScriptOperators:
    """The outermost operators of a trace."""

    rows: Ids  # events.id of each, by thread and in order of time
    calls: tuple[Operator | None, ...]  # the call of each; None if the trace has no shapes
    around: Ids  # for each event of the trace, the index of the operator that contains it, or -1


def find_operators(trace: Trace, rows: Mask) -> ScriptOperators:
    """The outermost operators among the events `rows`, a mask of shape (events,)."""
    events = trace.events
    inside = events.text("name").where(lambda name: name.startswith(_ATEN) and name != _EINSUM)
    chosen = np.flatnonzero(outermost(events["parent"], inside) & rows)
    chosen = chosen[np.lexsort((events["start_ns"][chosen], events["track"][chosen]))]
    around = inherit(events["parent"], inverse(chosen, len(events))).astype(np.int64)
    return ScriptOperators(chosen, tuple(_operator(trace, row) for row in chosen.tolist()), around)


def _operator(trace: Trace, row: int) -> Operator | None:
    arguments = trace.event_arguments(row)
    if not all(key in arguments for key in _KEYS):
        return None
    name = str(trace.events.text("name")[row]).removeprefix(_ATEN)
    dims, strides, types, values = (arguments[key] for key in _KEYS)
    if not len(dims) == len(strides) == len(types) == len(values) or not are_sizes(dims, strides):
        return None
    return Operator(name, tuple(dims), tuple(strides), tuple(types), tuple(map(str, values)))


MOST_ELEMENTS = 1 << 47  # a process on x86-64 addresses no more bytes: canonical user addresses have 47 bits


def are_sizes(sizes: Sequence[Any], strides: Sequence[Any] = ()) -> bool:
    """Whether each argument is a tensor that can be, a list of tensors, or neither.

    Example:
        >>> are_sizes([[2, 3], []], [[3, 1], []]), are_sizes([[2, {}]]), are_sizes([[1 << 40, 1 << 40]])
        (True, False, False)
    """
    tensors = list(_of_tensors(sizes))
    return (
        all(map(_are_counts, [*tensors, *_of_tensors(strides)]))
        and all(math.prod(each) < MOST_ELEMENTS for each in tensors)
        and all(_is_nested(size) == _is_nested(stride) for size, stride in zip(sizes, strides, strict=False))
    )


def _of_tensors(arguments: Sequence[Any]) -> Iterator[Any]:
    """The sizes of each tensor, also of those in lists."""
    for argument in arguments:
        yield from argument if _is_nested(argument) else [argument]


def _is_nested(argument: Any) -> bool:
    return isinstance(argument, list) and argument != [] and isinstance(argument[0], list)


def _are_counts(value: Any) -> bool:
    return isinstance(value, list) and all(type(each) is int and 0 <= each < MOST_ELEMENTS for each in value)


VERSION = 9  # of the file's format: a file of another version has another key
_FILE = re.compile(r"calibration-[0-9a-f]{16}\.json|\.calibration-[0-9a-f]{16}\.json\..+")
_LIMITS = ("ATEN_CPU_CAPABILITY", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")


@dataclass(frozen=True)
class Machine:
    """The machine and software that times depend on."""

    cpu: str
    cores: int
    torch: str
    threads: int
    instructions: str = ""  # environment variables that disable some of the processor's instructions

    @classmethod
    def of(cls, metadata: Metadata) -> "Machine":
        """This machine, with the torch version and thread count of a trace."""
        threads = metadata.capture.get("threads") or os.cpu_count() or 1
        version = metadata.framework_version
        forbidden = " ".join(f"{name}={os.environ[name]}" for name in _LIMITS if name in os.environ)
        return cls(cpu_model(), os.cpu_count() or 1, version, int(threads), forbidden)

    def __str__(self) -> str:
        count = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        limits = f", {self.instructions}" if self.instructions else ""
        return f"{self.cpu}, {count}, torch {self.torch}{limits}"


@dataclass(frozen=True)
class Calibration:
    """Times of single operators on one machine, in ns."""

    machine: Machine
    date: str  # when it was measured, YYYY-MM-DD
    # by signature: `[in 32 bits, in 16 bits]`; null if the call is not possible
    operators: Mapping[str, Sequence[float | None]] = field(default_factory=dict)
    casts: Sequence[Sequence[float]] = ()  # rows `[elements, to 16 bits, to 32 bits]`
    copies: Sequence[Sequence[float]] = ()  # rows `[bytes, copy of memory that is in no cache]`
    # rows `[elements, compress as DGC does, add what one worker sent, empty]`
    sparse_gradients: Sequence[Sequence[float]] = ()
    # by class: rows `[tensors, total elements, fused step]`
    optimizers: Mapping[str, Sequence[Sequence[float]]] = field(default_factory=dict)
    # handing over a worker's batch: rows `[bytes, CPU time of the training loop, CPU time of the worker]`
    loading: Sequence[Sequence[float]] = ()
    # an all-reduce of two processes on this machine: rows `[bytes, ns, CPU time of each process, ns]`
    reducing: Sequence[Sequence[float]] = ()
    # over two processes on this machine, CPU time of the computing thread: `units`, rows `[tensors, total
    # bytes, two gathers and one scatter]`, and `operator`, the extra time of an operator on sharded tensors
    sharding: Mapping[str, Any] = field(default_factory=dict)
    # the smallest share of a core that a measurement got, 0 to 1; with less than `QUIET` other processes
    # disturbed it
    core_share: float = 1.0

    @property
    def is_disturbed(self) -> bool:
        """Whether other processes used the machine so much that times may be too long."""
        return self.core_share < QUIET

    def __str__(self) -> str:
        busy = f", {self.load}" if self.is_disturbed else ""
        return f"calibration of {self.date} on {self.machine}{busy}"

    @property
    def load(self) -> str:
        """How busy the machine was, in words."""
        return f"measured on a busy machine with {self.core_share:.0%} of a core"

    def to_json(self) -> dict[str, Any]:
        """A dict that `json` can write."""
        return {"version": VERSION, **asdict(self)}


def between(rows: Sequence[Sequence[float]], at: float, column: int) -> float:
    """A column interpolated at `at` (column 0), on logarithmic scales.

    Before the first row it is constant; beyond the last row it grows in proportion.
    """
    table = np.array(rows, np.float64)
    x, y = table[:, 0], table[:, column]
    inside = float(np.exp(np.interp(np.log(max(at, 1)), np.log(x), np.log(y))))
    return inside * max(at / float(x[-1]), 1.0)


def calibration_path(machine: Machine) -> Path | None:
    """The file of a machine's calibration; None without a cache."""
    return path_about(VERSION, *asdict(machine).values())


def path_about(*facts: str | int) -> Path | None:
    """The file of a calibration by what it is of; None without a cache."""
    key = hashlib.blake2b(json.dumps(facts).encode(), digest_size=8).hexdigest()
    folder = cache_folder()
    return None if folder is None else folder / f"calibration-{key}.json"


def find_calibration(metadata: Metadata) -> Calibration | None:
    """This machine's calibration for traces like this one, or None."""
    return read_calibration(calibration_path(Machine.of(metadata)), Calibration)


def read_calibration(path: Path | None, kind: type[Kind]) -> Kind | None:
    """The calibration in a file; None without a file, and if it is damaged."""
    with suppress(OSError, ValueError, RecursionError):
        return decode(path.read_bytes(), kind) if path else None
    return None


def keep_calibration(calibration: Calibration) -> None:
    """Store a calibration, replacing an earlier one; without a cache, do nothing; raises ChangeError
    if it cannot be written."""
    write_calibration(calibration_path(calibration.machine), calibration.to_json())


def write_calibration(path: Path | None, data: dict[str, Any]) -> None:
    """Write the file of a calibration; without a path, do nothing; raises ChangeError if it fails."""
    if path is None:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with unfinished_file(path) as partial:
            partial.write_text(json.dumps(data), "utf-8")
            partial.replace(path)
    except OSError as error:
        raise ChangeError(
            f"{path}: cannot save the calibration: {error.strerror}; set $STEPSCOPE_CACHE to a "
            "writable folder"
        ) from error


def kept_calibrations() -> list[Path]:
    """The files of all calibrations, of any machine, including partial files."""
    folder = cache_folder()
    if folder is None or not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if _FILE.fullmatch(path.name))


def cpu_model() -> str:
    """The processor's name according to the system."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


STAGES = ("forward", "loss", "backward")
_OF_MACHINE = ("casts", "copies", "optimizers", "loading", "reducing", "sharding", "sparse_gradients")
_MIN_SHARE = 0.0005  # of the time of forward and backward


def calibrate(trace: Trace, *, afresh: bool = False) -> Calibration:
    """The machine's calibration, with everything that predictions for this trace need.

    A calibration that other processes disturbed is measured again; the less disturbed one counts.

    Args:
        trace: a CPU trace with shapes, recorded on this machine.

    Raises:
        ChangeError: if torch cannot be loaded, or its version differs from the trace's.
    """
    kept = None if afresh else find_calibration(trace.metadata)
    kept = kept if kept and kept.casts and kept.copies else None  # of operators alone: not whole
    known = None if kept is None or kept.is_disturbed else kept
    operators = find_operators(trace, trace.events.text("stage").mask(*STAGES))
    wanted = heaviest_operators(operators, trace.events["duration_ns"][operators.rows], _MIN_SHARE)
    missing = [text for text in wanted if known is None or text not in known.operators]
    if known is not None and not missing:
        return known
    calibration = _measured(Machine.of(trace.metadata), known, missing)
    if known is None and kept is not None:
        calibration = _less_disturbed(kept, calibration)
    keep_calibration(calibration)
    return calibration


def _less_disturbed(before: Calibration, now: Calibration) -> Calibration:
    """The calibration that got more of a core, with all operators that were asked for now."""
    if now.core_share >= before.core_share:
        return now
    more = {
        signature: times for signature, times in now.operators.items() if signature not in before.operators
    }
    share = now.core_share if more else before.core_share
    return replace(before, operators={**before.operators, **more}, core_share=share)


def heaviest_operators(operators: ScriptOperators, time: Times | Floats, least_share: float) -> list[str]:
    """Signatures of operators of FP32 values with a share of the time, which is that of each call; the
    longest first."""
    total: dict[str, float] = defaultdict(float)
    for call, spent in zip(operators.calls, time.tolist(), strict=True):
        if call is not None and call.floats:
            total[call.signature] += spent
    least = least_share * float(np.sum(time))
    return sorted((text for text, spent in total.items() if spent > least), key=lambda text: -total[text])


def _measured(machine: Machine, known: Calibration | None, operators: Sequence[str]) -> Calibration:
    request = {"threads": machine.threads, "operators": operators, "machine": known is None}
    facts = in_child("measure", request)
    require_torch(machine.torch, facts["torch"])
    date = datetime.date.today().isoformat()
    base = known or Calibration(machine, date, **{name: facts[name] for name in _OF_MACHINE})
    return replace(
        base,
        operators={**base.operators, **facts["operators"]},
        core_share=min(base.core_share, facts["core_share"]),
    )


def require_torch(recorded: str, here: str) -> None:
    """Raise ChangeError where the trace's torch is not that of this Python."""
    if recorded != here:
        raise ChangeError(
            f"the trace was recorded with torch {recorded}, but {sys.executable} has torch {here}; "
            "calibrate with the Python of the training script"
        )


def in_child(module: str, request: dict[str, object]) -> dict[str, Any]:
    """What a module of this package measures in a process of its own; raises ChangeError if it fails."""
    command = own_command(f"stepscope.models.calibration.{module}")
    environment = {**os.environ, "OMP_NUM_THREADS": str(request.get("threads", 1))}
    done = subprocess.run(
        command, input=json.dumps(request), capture_output=True, text=True, env=environment, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ChangeError(f"could not calibrate with {sys.executable}: {last}")
    return json.loads(done.stdout.splitlines()[-1])
