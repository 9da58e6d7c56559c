"""Times in warnings, in milliseconds."""

from __future__ import annotations


def milliseconds(ns: float) -> str:
    """A time with three digits and its unit, never with an exponent.

    Example:
        >>> milliseconds(421_271_000), milliseconds(4_100_000), milliseconds(61_234_567_000)
        ('421 ms', '4.1 ms', '61,235 ms')
    """
    ms = ns / 1e6
    return f"{ms:,.0f} ms" if abs(ms) >= 999.5 else f"{ms:.3g} ms"
