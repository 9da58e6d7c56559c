"""`synchronizing_calls`: calls that block the CPU until the device is done."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from stepscope.analyze.finding import Finding, Gain
from stepscope.analyze.gains import MOSTLY_SAVED
from stepscope.analyze.python_stalls import LOOP, name_of_stall, place_of_stall, stalled_ranges
from stepscope.analyze.rule_context import RuleContext, glob
from stepscope.base.arrays import Mask, Rows
from stepscope.base.numbers import rounded
from stepscope.facts.annotate.device.idle import paces_device
from stepscope.trace.schema import PRODUCT_KINDS, STAGES
from stepscope.trace.sets import mask_of

CAUSE = "synchronization"
EXPLAINS = ("synchronization",)
MANY = 32  # calls per step, on a CPU
REPEATS = 4  # a loop: so often per step it calls an operator on average


class BlockingCall(NamedTuple):
    """A kind of call: its operators, its spelling in Python, and the advice."""

    operators: str
    spelled: str
    advice: str


CALLS = (
    BlockingCall(
        r"^aten::(item|_local_scalar_dense|is_nonzero)$",
        ".item(), float(), bool() or `if`",
        "Keep the value in a tensor, and read it only every N steps. Accumulate losses there, and "
        "use torch.where for conditions.",
    ),
    BlockingCall(
        r"^aten::(nonzero|masked_select|_unique2|unique_consecutive|unique_dim|equal)$",
        "nonzero, boolean-mask indexing or unique",
        "Only the device knows the size of the result. Use torch.where, multiply by the mask, or "
        "use nonzero_static.",
    ),
)
LIBRARIES = {
    "transformers": "Raise logging_steps in TrainingArguments.",
    "lightning": "Raise log_every_n_steps of the Trainer, and log tensors instead of .item().",
}
COPIES = ".cpu(), .to('cpu'), .tolist(), .numpy(), print"
COPIES_OF_JAX = "float(x), x.item(), np.asarray(x), jax.device_get, print"
ADVICE = (
    "Copy into pinned memory with non_blocking=True and read the value a step later. Or copy only "
    "every N steps."
)
JAX = (
    "Keep the value on the device and read it only every N steps. Or start the copy with "
    "x.copy_to_host_async() and read the value a step later."
)
# On a CPU torch.optim reads its own counters; on a device nothing waits for these.
_OUTSIDE_OPTIMIZER = tuple(stage for stage in STAGES if stage != "optimizer")
_UPDATE = r"^Optimizer\.step#"
CLIPPING = (
    "If this clips gradients, torch.nn.utils.clip_grad_norm_(model.parameters(), …) computes the "
    "norm of all of them, and reads no value."
)
SCALER = (
    "GradScaler.step reads whether a gradient overflowed before each update. Compute in bfloat16, which "
    "needs no scaler, or give Adam, AdamW or SGD fused=True: it takes the answer on the device."
)
_UNSCALE = r"^aten::_amp_foreach_non_finite_check_and_unscale_$"
_TO_HOST = r"Memcpy DtoH|MemcpyD2H|CopyDeviceToHost"
_EXPLICIT = r"^(cuda|hip|cu)(Device|Stream|Event|Ctx)Synchronize$"
_EVENTS = "Wait for the event a step later, or ask without waiting whether it has come (event.query())."


def synchronizing_calls(context: RuleContext) -> Iterator[Finding]:
    """Calls that block the CPU until the device is done: .item(), .cpu(), nonzero, blocking copies.

    Silent if waiting costs nothing (the device stays busy and the CPU still gets ahead). On a CPU
    if there are fewer than 32 such calls per step outside the update of an optimizer; copies and
    explicit synchronizations count on devices only.
    """
    reported = np.zeros(0, np.int64)
    for call in CALLS:
        rows = _calls(context, call)
        if not len(rows) or (not context.measures.has_device and context.measures.calls(rows) < MANY):
            continue
        reported = np.concatenate([reported, rows])
        what = f"Each step calls {call.spelled} {context.times(rows)}.{_main_place(context, rows)}"
        if context.measures.has_device:
            what += " Each call on a tensor blocks the CPU until the device is done."
        else:
            what += f" They take {rounded(context.measures.ms(rows))} ms; on a GPU each blocks the CPU."
        advice = context.advice(call.advice, **LIBRARIES)
        clips = 2 * context.events.text("stage").mask("optimizer")[rows].sum() > len(rows)
        if clips and not context.measures.has_device:  # mostly between backward and the update
            advice = f"{CLIPPING} {advice}"
        if _mostly_of_scaler(context, rows):
            advice = SCALER
        yield context.finding(what, advice, rows, _gain(context, rows), recurs=context.measures.has_device)
    if context.measures.has_device:
        yield from _copies(context, reported)
    if context.measures.has_device and not context.is_jax:  # where the runtime itself waits so
        yield from _explicit(context)


def _calls(context: RuleContext, call: BlockingCall) -> Rows:
    """The calls that block the CPU; on a CPU those that are not an optimizer's own."""
    if context.measures.has_device:
        return _waiting(
            context, context.search.outermost(context.search.find(call.operators, category="cpu_op"))
        )
    updates = context.search.find(_UPDATE)
    stages = () if len(updates) else _OUTSIDE_OPTIMIZER
    rows = context.search.outermost(context.search.find(call.operators, category="cpu_op", stage=stages))
    return rows[~context.search.within(updates)[rows]] if len(updates) else rows


def _mostly_of_scaler(context: RuleContext, rows: Rows) -> bool:
    """Whether most calls are the first ones after a GradScaler unscaled gradients."""
    unscaled = context.search.find(_UNSCALE, category="cpu_op")
    if not len(unscaled) or not context.measures.has_device:
        return False
    start = context.events["start_ns"]
    after = np.unique(np.searchsorted(start[rows], start[unscaled]))
    return bool(2 * (after < len(rows)).sum() > len(rows))


def _gain(context: RuleContext, rows: Rows) -> Gain:
    if context.measures.has_device:
        return _without_waits(context, rows, *map("no_sync:operator={}".format, context.search.names(rows)))
    if context.context_trace:
        alone = "the time of these calls alone; a loop around them may take more"
        return context.gains.bound(context.measures.ms(rows), alone, besides=np.inf, sure=MOSTLY_SAVED)
    ms, calls = _loops(context, rows)
    bound = context.gains.bound(ms, "at most the time of the loops around them", sure=MOSTLY_SAVED)
    return context.gains.unsure(bound, context.search.within(calls))


def _without_waits(context: RuleContext, rows: Rows, *changes: str) -> Gain:
    """What it saves not to wait: no more than the device idles in most steps."""
    gain, idle = context.gains.gain(rows, *changes), context.measures.idle()
    return gain if context.context_trace else gain.at_most(context.measures.recurring_ms(idle))


def _loops(context: RuleContext, rows: Rows) -> tuple[float, Rows]:
    """What the loops around some calls cost, ms per step, and all that these call.

    The calls alone where other operators run between any two, or products: these compute what is
    trained, or played, with or without the calls.
    """
    loops = context.eager.of_loops(rows)
    calls = context.eager.rows[loops]
    products = context.search.holding(context.search.find(kind=PRODUCT_KINDS, category="cpu_op"))
    names = len(np.unique(context.events["name"][calls]))
    if products[calls].any() or names * REPEATS * context.step_count > len(calls):
        return context.measures.ms(rows), rows
    return context.eager.ms(loops), calls


def _waiting(context: RuleContext, rows: Rows) -> Rows:
    """The operators in which the CPU waits for the device, or copies to the host."""
    waits = context.search.find(f"{_EXPLICIT}|{_TO_HOST}", inside=rows)
    around = context.search.enclosing(rows)[waits]
    return np.unique(around[around >= 0])


def _copies(context: RuleContext, reported: Rows) -> Iterator[Finding]:
    copies = context.search.find(_TO_HOST, on_device=True)
    awaited = np.append(paces_device(context.trace), True)  # no thread that saves beside the loop
    copies = copies[awaited[context.search.caller[copies]] | bool(context.context_trace)]
    operator = context.search.operator_of(copies)
    waits = context.search.find(_EXPLICIT, category="runtime")
    synchronized = np.isin(operator, context.search.operator_of(waits)) & (operator >= 0)
    wait = _waits_for_copies(context, copies)
    blocking = context.search.outlasted(copies) | synchronized | (wait >= 0)
    chosen = blocking & ~context.search.within(reported)[copies]
    rows = copies[chosen]
    if len(rows):
        names = sorted({*map(glob, context.search.names(rows))})
        caller = np.where(synchronized, operator, context.search.caller[copies])
        blocks = np.where(wait >= 0, wait, np.where(caller >= 0, caller, copies))[chosen]
        spelled = context.by_framework(COPIES, jax=COPIES_OF_JAX)
        yield context.finding(
            f"Each step copies from the device {context.times(rows)}, blocking the CPU. "
            f"Such copies are {spelled}.{_main_place(context, blocks)}",
            context.by_framework(ADVICE, jax=JAX),
            np.unique(blocks),
            _without_waits(
                context, np.union1d(rows, wait[wait >= 0]), *(f"no_sync:awaits={name}" for name in names)
            ),
        )


def _main_place(context: RuleContext, rows: Rows) -> str:
    """Where most of the time is that the CPU is blocked, as a sentence: a line, else the user's range."""
    place = context.main_place(rows)
    if place or context.context_trace:
        return place
    stalled = stalled_ranges(context, context.measures.spans(rows))
    name = name_of_stall(context, stalled) if len(stalled.rows) else LOOP
    return "" if name == LOOP else f" {place_of_stall(context, stalled, name)}."


def _waits_for_copies(context: RuleContext, copies: Rows) -> Rows:
    """The explicit synchronization after each copy to the host, which the CPU then reads; -1 for none.

    After further launches it is for more than the copy.
    """
    starts, calls = context.events["start_ns"], context.search.caller[copies]
    waits, is_later = context.search.find(_EXPLICIT, category="runtime"), _launches(context)
    is_later[calls[calls >= 0]] = False
    is_later[waits] = True
    later = np.flatnonzero(is_later)
    place = np.searchsorted(starts[later], starts[calls])
    following = np.append(later, -1)[np.where(calls >= 0, place, len(later))]
    outside = np.isin(following, waits) & (context.search.operator_of(following) < 0)
    return np.where(outside, following, -1)


def _launches(context: RuleContext) -> Mask:
    """Which events launched device work, bool, shape (events,)."""
    calls = context.search.caller[context.search.find(on_device=True)]
    return mask_of(calls[calls >= 0], len(context.events))


def _explicit(context: RuleContext) -> Iterator[Finding]:
    """Explicit synchronizations such as torch.cuda.synchronize() between launches.

    A profiler synchronizes too, when it starts and stops; these do not count, nor do waits for copies.
    """
    calls = context.search.find(_EXPLICIT, category="runtime")
    calls = calls[paces_device(context.trace)[calls] | bool(context.context_trace)]
    starts = context.events["start_ns"]
    launches = starts[_launches(context)]
    between = (starts[calls] > launches.min(initial=0)) & (starts[calls] < launches.max(initial=0))
    read = _waits_for_copies(context, context.search.find(_TO_HOST, on_device=True))
    rows = calls[(context.search.operator_of(calls) < 0) & between & ~np.isin(calls, read)]
    if context.measures.calls(rows) >= 1:
        names = context.search.names(rows)
        yield context.finding(
            f"The step calls an explicit synchronization {context.times(rows)} "
            f"({', '.join(names)}).{_main_place(context, rows)}",
            _EVENTS
            if all("Event" in name for name in names)
            else f"Remove torch.cuda.synchronize() from the {context.loop}; use CUDA events for timing.",
            rows,
            _without_waits(context, rows, *(f"no_sync:name={name}" for name in names)),
        )
