"""Which parts of the collector work on this machine, and what the others lack.

python -m stepscope.capture.contexts.capability_probe
"""

from __future__ import annotations

from stepscope.capture.contexts import native_build as build
from stepscope.capture.contexts.native_collector import loaded_torch
from stepscope.capture.contexts.sampling_permission import permission_missing

PARTS = ("native collector", "hardware counters", "NVIDIA", "NVIDIA, stalls", "AMD", "AMD, stalls")


def probe() -> dict[str, str]:
    """What each part of the collector lacks; empty if it works.

    Returns:
        The parts of `PARTS`, each with a sentence.
    """
    try:
        extension = build.load(loaded_torch())
    except build.BuildError as error:
        return dict.fromkeys(PARTS, str(error))
    devices = extension.devices_missing()
    (nvidia, nvidia_stalls), (amd, amd_stalls) = devices["NVIDIA"], devices["AMD"]
    found = "", extension.counters_missing(), nvidia, nvidia_stalls or permission_missing()
    return dict(zip(PARTS, (*found, amd, amd_stalls), strict=True))


if __name__ == "__main__":
    for part, missing in probe().items():
        print(f"{part}: {missing or 'works'}")
