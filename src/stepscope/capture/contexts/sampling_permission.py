"""Whether this process may sample instructions of NVIDIA's devices, as the driver's files say."""

from __future__ import annotations

from pathlib import Path

_PARAMETERS = Path("/proc/driver/nvidia/params")
_STATUS = Path("/proc/self/status")
_CAP_SYS_ADMIN = 1 << 21


def permission_missing(parameters: Path = _PARAMETERS, status: Path = _STATUS) -> str:
    """What an administrator has to do first; empty where nothing is known to be missing.

    Args:
        parameters: the file with the driver's options.
        status: the file with the status of this process.
    """
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
