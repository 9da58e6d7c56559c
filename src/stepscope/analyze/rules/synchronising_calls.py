"""`synchronising_calls`: the CPU stops until the device has caught up."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.subject import Rows, Subject, glob
from stepscope.trace.schema import STAGES

MANY = 32
CLOSE_NS = 500_000


class Call(NamedTuple):
    """A kind of call: operators that make it, what it is called in Python, and its remedy."""

    operators: str
    spelled: str
    advice: str


CALLS = (
    Call(
        r"^aten::(item|_local_scalar_dense|is_nonzero)$",
        ".item(), float(), bool() or if on a tensor",
        "Keep the value in a tensor (sum losses there, use torch.where for conditions), and read "
        "it once every many steps.",
    ),
    Call(
        r"^aten::(nonzero|masked_select|_unique2|unique_consecutive|unique_dim|equal)$",
        "nonzero, a boolean mask as index, or unique",
        "Their result's size is known on the device only: use torch.where, multiply by the mask, "
        "or nonzero_static.",
    ),
)
COPIES = ".cpu(), .to('cpu'), .tolist(), .numpy(), print"
COPIES_OF_JAX = "float(x), x.item(), np.asarray(x), jax.device_get, print"
ADVICE = (
    "Copy into pinned memory with non_blocking=True and read it a step later, or copy once every "
    "many steps."
)
JAX = (
    "Keep it on the device and read it once every many steps, or begin the copy with "
    "x.copy_to_host_async() and read it a step later."
)
# On a CPU torch.optim reads its own counters; with a device nothing waits for these.
_NOT_TORCHS_OWN = tuple(stage for stage in STAGES if stage != "optimizer")
_TO_HOST = r"Memcpy DtoH|MemcpyD2H|CopyDeviceToHost"
_EXPLICIT = r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize$"


def synchronising_calls(subject: Subject) -> Iterator[Finding]:
    """Calls that make the CPU wait for the device: .item(), .cpu(), nonzero, blocking copies.

    Silent where waiting costs nothing (the device is busy meanwhile and the CPU still gets ahead),
    and without a device where there are fewer than 32 such calls a step outside the optimizer;
    copies and explicit synchronisations are looked at on devices only.
    """
    stages = () if subject.has_device else _NOT_TORCHS_OWN
    told = np.zeros(0, np.int64)
    for call in CALLS:
        rows = subject.outermost(subject.find(call.operators, category="cpu_op", stage=stages))
        if subject.has_device:
            rows = _waiting(subject, rows)
        if not len(rows) or (not subject.has_device and subject.calls(rows) < MANY):
            continue
        told = np.concatenate([told, rows])
        what = f"The step calls {call.spelled} {subject.calls(rows):.4g} times"
        what += ", and the CPU waits for the device each time." if subject.has_device \
            else f", {subject.ms(rows):.3g} ms; on a GPU each would wait for it."  # fmt: skip
        yield subject.finding(what, call.advice, rows, _gain(subject, rows))
    if subject.has_device:
        yield from _copies(subject, told)
    if subject.has_device and not subject.is_jax:  # where the runtime itself waits so
        yield from _explicit(subject)


def _gain(subject: Subject, rows: Rows) -> Gain:
    if subject.has_device:
        names = sorted({subject.name(row) for row in rows.tolist()})
        return subject.gain(rows, *(f"no_sync:operator={name}" for name in names))
    if subject.unfolded:
        return subject.bound(subject.ms(rows), "at most their own time")
    return subject.bound(_loops_ms(subject, rows), "at most the time of the loops around them")


def _loops_ms(subject: Subject, rows: Rows) -> float:
    """The time from the first to the last of calls that follow each other closely, ms a step."""
    start = subject.events["start_ns"][rows]
    end = start + subject.events["duration_ns"][rows]
    between = start[1:] - end[:-1]
    return float((end - start).sum() + between[between < CLOSE_NS].sum()) / 1e6 / subject.count


def _waiting(subject: Subject, rows: Rows) -> Rows:
    """Those of some operators in which something waits for the device, or copies to the host."""
    waits = subject.find(f"{_EXPLICIT}|{_TO_HOST}", inside=rows)
    around = subject.led_from(rows)[waits]
    return np.unique(around[around >= 0])


def _copies(subject: Subject, told: Rows) -> Iterator[Finding]:
    """Copies to the host whose call returns only when they are done: .cpu(), .to("cpu"), print."""
    copies = subject.find(_TO_HOST, on_device=True)
    calls = subject.caller[copies]
    end = subject.events["start_ns"] + subject.events["duration_ns"]
    operator = subject.operator_of(copies)
    waits = subject.find(_EXPLICIT, category="runtime")
    synchronised = np.isin(operator, subject.operator_of(waits)) & (operator >= 0)
    blocking = (calls >= 0) & ((end[calls] >= end[copies]) | synchronised)
    rows = copies[blocking & ~subject.led_to(told)[copies]]
    if len(rows):
        names = sorted({glob(subject.name(row)) for row in rows.tolist()})
        yield subject.finding(
            f"The step copies from the device {subject.calls(rows):.4g} times "
            f"while the CPU stands waiting ({subject.in_words(COPIES, jax=COPIES_OF_JAX)}).",
            subject.in_words(ADVICE, jax=JAX),
            rows,
            subject.gain(rows, *(f"no_sync:awaits={name}" for name in names)),
        )


def _explicit(subject: Subject) -> Iterator[Finding]:
    """torch.cuda.synchronize() and its like, called by the program itself between its launches.

    A profiler synchronises too, when it starts and stops.
    """
    calls = subject.find(_EXPLICIT, category="runtime")
    starts = subject.events["start_ns"]
    launches = starts[subject.caller[subject.find(on_device=True)]]
    between = (starts[calls] > launches.min(initial=0)) & (starts[calls] < launches.max(initial=0))
    rows = calls[(subject.operator_of(calls) < 0) & between]
    if subject.calls(rows) >= 1:
        names = sorted({subject.name(row) for row in rows.tolist()})
        yield subject.finding(
            f"The step waits for the device on purpose {subject.calls(rows):.4g} times "
            f"({', '.join(names)}).",
            "Leave torch.cuda.synchronize() out of the training loop; for timing use CUDA events.",
            rows,
            subject.gain(rows, *(f"no_sync:name={name}" for name in names)),
        )
