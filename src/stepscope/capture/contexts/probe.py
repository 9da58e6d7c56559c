"""What of the collector works on this machine, and what is missing for the rest.

python -m stepscope.capture.contexts.probe
"""

from __future__ import annotations

from stepscope.capture.contexts import build
from stepscope.capture.contexts.native import loaded_torch


def probe() -> dict[str, str]:
    """For each part of the collector what is missing; an empty text where nothing is.

    Returns:
        Parts `native collector`, `hardware counters`, `NVIDIA` and `AMD`, each with a sentence.
    """
    try:
        extension = build.load(loaded_torch())
    except build.BuildError as error:
        return dict.fromkeys(("native collector", "hardware counters", "NVIDIA", "AMD"), str(error))
    return {
        "native collector": "",
        "hardware counters": extension.counters_missing(),
        **extension.devices_missing(),
    }


if __name__ == "__main__":
    for part, missing in probe().items():
        print(f"{part}: {missing or 'works'}")
