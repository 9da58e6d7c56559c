"""Numbers as an editor shows them: short, with a unit."""

from __future__ import annotations


def milliseconds(ms: float) -> str:
    """`0.42 ms`, `12.3 ms`, `1.20 s`."""
    if ms >= 1000:
        return f"{ms / 1000:.2f} s"
    return f"{ms:.0f} ms" if ms >= 100 else f"{ms:.1f} ms" if ms >= 10 else f"{ms:.2f} ms"


def size(count: int | float) -> str:
    """`512 B`, `45.2 MB`, `1.30 GB`."""
    for unit, least in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= least:
            value = count / least
            return f"{value:.0f} {unit}" if value >= 100 else f"{value:.3g} {unit}"
    return f"{count:.0f} B"


def percent(share: float) -> str:
    """`34 %`, `0.4 %`."""
    return f"{100 * share:.0f} %" if share >= 0.01 else f"{100 * share:.1f} %"
