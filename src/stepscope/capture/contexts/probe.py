"""What of the collector works on this machine, and what is missing for the rest.

python -m stepscope.capture.contexts.probe
"""

from __future__ import annotations

from stepscope.capture.contexts import build
from stepscope.capture.contexts.native import loaded_torch
from stepscope.capture.contexts.permission import permission_missing

PARTS = ("native collector", "hardware counters", "NVIDIA", "NVIDIA, stalls", "AMD", "AMD, stalls")


def probe() -> dict[str, str]:
    """For each part of the collector what is missing; an empty text where nothing is.

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
