"""Which parts of the native collector work on this machine, and what the others lack.

python -m stepscope.record.contexts.capability_probe
"""

import sys
from pathlib import Path

from stepscope.record.contexts import native_build as build

PARTS = ("native collector", "hardware counters", "NVIDIA", "NVIDIA, stalls", "AMD", "AMD, stalls")
_PARAMETERS = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN = 1 << 21  # bit of CapEff (Linux, include/uapi/linux/capability.h)


def probe() -> dict[str, str]:
    """What each part of the collector lacks; empty if it works."""
    try:
        extension = build.load(sys.modules.get("torch"))
    except build.BuildError as error:
        return dict.fromkeys(PARTS, str(error))
    devices = extension.devices_missing()
    (nvidia, nvidia_stalls), (amd, amd_stalls) = devices["NVIDIA"], devices["AMD"]
    lacks = "", extension.counters_missing(), nvidia, nvidia_stalls or permission_missing()
    return dict(zip(PARTS, (*lacks, amd, amd_stalls), strict=True))


def permission_missing(parameters: Path = _PARAMETERS, status: Path = _STATUS) -> str:
    """What an administrator has to do first; empty where nothing is known to be missing."""
    if "RmProfilingAdminOnly: 1" not in _text(parameters):
        return ""
    held = [line.split()[1] for line in _text(status).splitlines() if line.startswith("CapEff:")]
    if held and int(held[0], 16) & _CAP_SYS_ADMIN:
        return ""
    return (
        "NVIDIA: the driver allows only administrators to profile the device; load it with "
        "NVreg_RestrictProfilingToAdminUsers=0 (a line `options nvidia "
        "NVreg_RestrictProfilingToAdminUsers=0` in /etc/modprobe.d, and a reboot), or give this "
        "process CAP_SYS_ADMIN (docker run --cap-add=SYS_ADMIN)"
    )


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


if __name__ == "__main__":
    for part, missing in probe().items():
        print(f"{part}: {missing or 'works'}")
