"""What holds a step up, in one sentence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

NOTABLE = 0.10  # a cause that costs less than this share of the step is not what holds it up
MOSTLY = 0.50
_BESIDE = "beside forward, backward and optimizer"

_SENTENCES = {
    "data": "The step waits for data: "
    "for {share:.0%} of it the device is idle while a batch is loaded.",
    "synchronisation": "The step waits at synchronisations: "
    "for {share:.0%} of it the device is idle because the CPU stood waiting for it.",
    "communication": "The step waits for communication: "
    "for {share:.0%} of it the device only exchanges data with others.",
    "host": "The step is held up by the CPU: "
    "for {share:.0%} of it the device is idle because nothing was launched.",
    "launch": "The step is held up by launches: "
    "for {share:.0%} of it the device is idle although work was launched.",
    "device": "The step is bound by the device, which computes for {share:.0%} of it.",
    "cpu_data": "The step waits for data: {share:.0%} of it goes by while a batch is loaded.",
    "cpu_python": "The step is held up by Python: "
    "for {share:.0%} of it no operator runs, most of all {where}.",
    "cpu_communication": "The step waits for communication: "
    "for {share:.0%} of it data is exchanged with others and no operator runs.",
    "cpu_other": "The step is held up by what the loop does beside training: {share:.0%} of it is "
    "neither data loading, nor forward, backward or optimizer.",
    "cpu": "The step is bound by computing on the CPU; the longest stage is {stage} ({share:.0%}).",
}


class _Stage(Protocol):
    @property
    def stage(self) -> str: ...
    @property
    def share(self) -> float: ...


class _Device(Protocol):
    @property
    def window_ms(self) -> float: ...
    @property
    def computing_ms(self) -> float: ...
    @property
    def idle_ms(self) -> dict[str, float]: ...


@dataclass(frozen=True)
class Verdict:
    """What bounds the step (`bound_by`), how much of it that costs, and a sentence that says so."""

    bound_by: str
    share: float
    sentence: str


def verdict(
    step_ms: float,
    stages: Sequence[_Stage],
    devices: Sequence[_Device],
    python: Mapping[str, float] | None = None,
    communication: float = 0.0,
) -> Verdict:
    """Judge a step by its busiest device's idle time, or by its stages where there is no device.

    Args:
        step_ms: mean length of a step, ms.
        stages: the step's stages.
        devices: the devices it uses.
        python: by stage, the share of the step in which only Python runs; without a device.
        communication: the share of the step in which it only communicates; without a device.

    Returns:
        `bound_by` is a cause of idle time, `device`, or `cpu`.
    """
    if not devices:
        return _of_cpu(stages, python or {}, communication)
    device = max(devices, key=lambda one: one.computing_ms)
    window = device.window_ms or step_ms or 1.0
    cause = max(device.idle_ms, key=lambda one: device.idle_ms[one])
    share = device.idle_ms[cause] / window
    if share >= NOTABLE:
        return Verdict(cause, share, _SENTENCES[cause].format(share=share))
    share = device.computing_ms / window
    return Verdict("device", share, _SENTENCES["device"].format(share=share))


def _of_cpu(stages: Sequence[_Stage], python: Mapping[str, float], communication: float) -> Verdict:
    data = sum(one.share for one in stages if one.stage == "data_loading")
    idle = sum(python.values())
    if idle >= MOSTLY:
        stage = max(python, key=lambda one: python[one])
        where = _BESIDE if stage == "other" else f"in {stage.replace('_', ' ')}"
        return Verdict("host", idle, _SENTENCES["cpu_python"].format(share=idle, where=where))
    if communication >= max(NOTABLE, data):
        text = _SENTENCES["cpu_communication"].format(share=communication)
        return Verdict("communication", communication, text)
    if data >= NOTABLE:
        return Verdict("data", data, _SENTENCES["cpu_data"].format(share=data))
    if not stages:
        return Verdict("cpu", 0.0, "Nothing recorded tells what the step does.")
    longest = max(stages, key=lambda one: one.share)
    text = _SENTENCES["cpu_other" if longest.stage == "other" else "cpu"]
    name = longest.stage.replace("_", " ")
    return Verdict("cpu", longest.share, text.format(stage=name, share=longest.share))
