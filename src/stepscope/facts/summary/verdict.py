"""The verdict: what limits the step, in one sentence, and how certain that is."""

from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from stepscope.base.numbers import ms
from stepscope.facts.summary.facts import Device, Stage, Verdict
from stepscope.facts.summary.text_tables import TIME_WORDS, stage_words
from stepscope.trace.declaration import INFERENCE_STAGES
from stepscope.trace.recorded_steps import MUCH_BLOCKED, QUIET, blocked_share

NOTABLE = 0.10  # of the step: what costs less does not limit it
LEAST_LEFT_OUT = 0.01  # of the step: one-off costs that take less change no share
MOSTLY = 0.50  # of the step, or of the work: more than everything else together
MUCH_LONGER = 2  # that steps load data after the recording than in it
TAKE_TURNS, SLOW_LAUNCHES = "Devices wait for each other", "Slow launches leave the device idle"
_SENTENCES = {
    "data": "The step waits for data: the device idles {share:.0%} of it.",
    "synchronization": "Synchronization stalls the step: the device idles {share:.0%} of it.",
    "communication": "The step waits for communication: {share:.0%} of it is exposed communication.",
    "host": "The step is host-bound: the device awaits launches for {share:.0%} of it.",
    "sometimes_host": "The device computes or copies {computing:.0%} of the step, "
    "awaits launches {share:.0%}.",
    "launch": "Launched work waits: the device is idle for {share:.0%} of the step.",
    "slow_launches": SLOW_LAUNCHES + " for {share:.0%} of the step.",
    "unknown": "The device computes or copies {computing:.0%} of the step, idles {share:.0%}. {why}",
    "several": "The device computes or copies {computing:.0%} of the step. "
    "The rest has several causes, the longest {share:.0%} ({words}).",
    "turns": TAKE_TURNS + ". The busiest computes or copies {computing:.0%} of the step.",
    "device": "The step is device-bound: the device computes or copies {share:.0%} of it.",
    "copies": "The step is bound by copies, {copies:.0%} of the device's work. "
    "The device is busy for {share:.0%} of the step.",
    "cpu_data": "The step waits for data: loading batches takes {share:.0%} of it.",
    "later_data": "The step waits for data: after recording, loading takes {share:.0%} of it. "
    "The recorded steps found batches that were ready.",
    "later_waits": "The step waits: blocked for about {share:.0%} of it after recording. "
    "The recorded steps found ready what it waits for.",
    "cpu_python": "Python limits the step: for {share:.0%} of it no operator runs.{where}",
    "cpu_waits": "The step waits: its loop is blocked for about {share:.0%} of it.{where}",
    "cpu_communication": "The step waits for communication: ranks exchange data for {share:.0%} of it. "
    "No operator runs then.",
    "cpu_other": "Work outside {what} takes {share:.0%} of the step. It is neither {parts}.",
    "cpu_compiles": "Compilation takes {share:.0%} of the step: each step compiles functions again.",
    "cpu_unknown": "The trace does not show what the step does. "
    "No data loading, forward, backward or optimizer was found.",
    "cpu": "The step is CPU-bound; the longest stage is {stage} ({share:.0%}).{loads}",
}
NO_CPU = "Without the CPU's side the trace does not show why."
NO_NAMES = "The trace names no operator or call of the CPU, so it does not show why."
TWO_CLOCKS = "The clocks of CPU and device do not agree, so the trace does not show why."
# Stages that show the purpose of a step, this purpose, and the parts of such a step.
_PURPOSES = (
    (("optimizer",), "training", ("data loading", "forward", "backward", "optimizer")),
    # What updates the weights may be in none of the stages, as a jitted function of the user's.
    (("backward",), "the forward and backward pass", ("data loading", "forward", "backward")),
    (INFERENCE_STAGES, "the model", ("prefill", "decode")),
    ((), "the model", ("data loading", "forward")),
)
CANNOT_TELL = 0.6  # of a core: with less, the wait for a core may outweigh every other cause


def verdict(
    step_ms: float,
    stages: Sequence[Stage],
    devices: Sequence[Device],
    python: Mapping[str, float] | None = None,
    communication: float = 0.0,
    active: float = 1.0,
    later_data: float = 0.0,
    later_blocked: float = 0.0,
    held_up: float = 0.0,
    why: str = NO_CPU,
    turns: float = 0.0,
    compiling: float = 0.0,
    latency: float = 0.0,
) -> Verdict:
    """Find what limits a step: the idle time of its busiest device, or its stages without one.

    Args:
        python: share of the step with only Python running, by stage; used without a device.
        communication: share of the step with exposed communication; used without a device.
        active: share of the step in which the training loop's thread uses a core, or waits for one;
            used without a device.
        later_data: share of the steps after the recording that loads data; used without a device.
        later_blocked: how much more of these the training loop is blocked than of the recorded
            ones; used without a device.
        held_up: share of the step in which other threads compute and it waits; used without a device.
        why: the cause of idle time is unknown, if it is.
        turns: time per step in which the busiest device idles while another works, ms.
        compiling: share of the step in which a function is compiled again; used without a device.
        latency: time per step in which the busiest device idles shortly after a launch, ms.

    Returns:
        `bound_by` is a cause of idle time (see `IDLE_CAUSES`), `device`, or `cpu`.
    """
    if devices:
        busiest = max(devices, key=lambda device: device.computing_ms)
        return _device_verdict(step_ms, busiest, why, turns, latency)
    if compiling >= MOSTLY:
        return Verdict("cpu", compiling, _SENTENCES["cpu_compiles"].format(share=compiling))
    found = _later_verdict(stages, python or {}, communication, later_data, later_blocked)
    return found or _cpu_verdict(stages, python or {}, communication, active, held_up)


def _device_verdict(step_ms: float, device: Device, why: str, turns: float, latency: float) -> Verdict:
    """What limits the steps of a device, without what later steps do not pay."""
    window = device.steady_ms or step_ms or 1.0
    idle = {cause: ms for cause, ms in device.idle_ms.items() if cause != "one_off"}
    cause = max(idle, key=idle.__getitem__)
    share, comparing_ms = idle[cause] / window, device.one_off_ms - device.idle_ms.get("one_off", 0.0)
    computing = max(device.computing_ms - comparing_ms, 0.0) / window
    if turns >= max(NOTABLE * window, MOSTLY * sum(idle.values())):
        return Verdict(cause, share, _SENTENCES["turns"].format(computing=computing) + _left_out(device))
    if sum(idle.values()) >= NOTABLE * window:
        name = "sometimes_host" if cause == "host" and share < computing else cause
        name = "slow_launches" if cause == "launch" and latency >= MOSTLY * idle[cause] else name
        name = name if share >= NOTABLE else "several"
        text = _SENTENCES[name].format(share=share, computing=computing, why=why, words=TIME_WORDS[cause])
        return Verdict(cause, share, text + _left_out(device))
    copies = device.copying_ms / (device.computing_ms or 1.0)  # those beside kernels limit nothing
    text = _SENTENCES["copies" if copies >= MOSTLY else "device"]
    return Verdict("device", computing, text.format(share=computing, copies=copies) + _left_out(device))


def _left_out(device: Device) -> str:
    """What the shares leave out, in a sentence of its own; empty if that is next to nothing."""
    part = device.one_off_ms / (device.window_ms or 1.0)
    if part < LEAST_LEFT_OUT:
        return ""
    cost = f"{ms(device.one_off_ms)} ms per step ({part:.0%} of the recorded time)"
    return f" This leaves out one-off costs of {cost}, which later steps do not pay."


def _later_verdict(
    stages: Sequence[Stage],
    python: Mapping[str, float],
    communication: float,
    later_data: float,
    later_blocked: float,
) -> Verdict | None:
    """What only the steps after the recording wait for; None if that is not the most."""
    data = _loading(stages)
    others = max(sum(python.values()), communication)
    if later_data >= max(NOTABLE, MUCH_LONGER * data, others):
        return Verdict("data", later_data, _SENTENCES["later_data"].format(share=later_data))
    if later_blocked >= max(MUCH_BLOCKED, data, others):
        text = _SENTENCES["later_waits"].format(share=later_blocked)
        return Verdict("host", later_blocked, text)
    return None


def _loading(stages: Sequence[Stage]) -> float:
    return sum(stage.share for stage in stages if stage.stage == "data_loading")


def _cpu_verdict(
    stages: Sequence[Stage], python: Mapping[str, float], communication: float, active: float, held_up: float
) -> Verdict:
    data = _loading(stages)
    idle = sum(python.values())
    working = max((stage.share for stage in stages if stage.stage != "data_loading"), default=0.0)
    held_up = held_up if idle and held_up >= max(communication, data, working) else 0.0
    if idle >= MOSTLY or held_up:
        stage = max(python, key=python.__getitem__)
        place = _outside(stages) if stage == "other" else f"in {stage_words(stage)}"
        where = f" That is mostly {place}." if python[stage] >= MOSTLY * idle else ""
        elsewhere = communication + data - python.get("data_loading", 0.0)
        blocked = max(blocked_share(idle, active, elsewhere), held_up)
        text = _SENTENCES["cpu_waits" if blocked else "cpu_python"]
        return Verdict("host", blocked or idle, text.format(share=blocked or idle, where=where))
    if communication >= max(NOTABLE, data):
        text = _SENTENCES["cpu_communication"].format(share=communication)
        return Verdict("communication", communication, text)
    if data >= max(NOTABLE, working):
        return Verdict("data", data, _SENTENCES["cpu_data"].format(share=data))
    if all(stage.stage == "other" for stage in stages):
        return Verdict("cpu", sum(stage.share for stage in stages), _SENTENCES["cpu_unknown"])
    longest = max(stages, key=lambda stage: stage.share)
    if longest.stage == "other":
        what, parts = _purpose(stages)
        text = _SENTENCES["cpu_other"].format(
            what=what, share=longest.share, parts=f"{', '.join(parts[:-1])} nor {parts[-1]}"
        )
    else:
        name = stage_words(longest.stage)
        loads = f" Loading batches takes {data:.0%}." if data >= NOTABLE else ""
        text = _SENTENCES["cpu"].format(stage=name, share=longest.share, loads=loads)
    return Verdict("cpu", longest.share, text)


def _outside(stages: Sequence[Stage]) -> str:
    """Outside of the parts of a step, in words."""
    parts = [part for part in _purpose(stages)[1] if part != "data loading"]
    return f"outside {', '.join(parts[:-1])} and {parts[-1]}" if parts[1:] else f"outside {parts[0]}"


def _purpose(stages: Sequence[Stage]) -> tuple[str, tuple[str, ...]]:
    """What the steps do by their stages, and its parts: training needs evidence."""
    found = {stage.stage for stage in stages}
    return next((what, parts) for shown, what, parts in _PURPOSES if not shown or found & {*shown})


def without_all_work(verdict: Verdict, why: str, elsewhere: bool = False) -> Verdict:
    """The verdict, withheld where work is missing in the file, as `why` says; empty if none is.

    A device that is busy all the time with the recorded work is no less busy with all of it, unless
    some of this work is of other devices or steps: it ran `elsewhere`.
    """
    if not why or (verdict.bound_by == "device" and not elsewhere):
        return verdict
    return Verdict("unknown", 0.0, f"Cannot tell what limits the step. Reason: {why}.")


def under_load(verdict: Verdict, share: float | None) -> Verdict:
    """The verdict, marked as uncertain or withheld where other processes used the machine.

    `share` is of a core, as `core_share` gives it. A step that its device limits is no shorter on a
    quiet machine. `bound_by` of a verdict that is withheld is `unknown`.
    """
    if share is None or share >= QUIET or verdict.bound_by == "device":
        return verdict
    if share < CANNOT_TELL:
        sentence = "Cannot tell what limits the step, since other processes used the machine. "
        return Verdict("unknown", 0.0, f"{sentence}As recorded: {verdict.sentence}")
    return replace(verdict, sentence=f"{verdict.sentence} Other processes may be the cause.")


def certain_share(part: float, verdict: Verdict, share: float | None) -> float:
    """How much of the step a part takes at least, wherever the process waited for a core.

    `part` is a share of the step, and `share` of a core, as for `under_load`. Without a verdict
    nothing is certain. A step that its device limits is no shorter on a quiet machine. Else all the
    time without a core may have been in this part.
    """
    if verdict.bound_by == "unknown":
        return 0.0
    if share is None or share >= QUIET or verdict.bound_by == "device":
        return part
    return max(part - (1 - share), 0.0) / share
