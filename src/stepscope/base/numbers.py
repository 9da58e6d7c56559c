"""Numbers, titles and kinds of memory as people read them."""

import re
from decimal import Decimal

STORAGE_KINDS = {
    "parameter": "weights",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "input": "inputs",
}


# Those of terminals, those that XML lacks, other line ends, and those that turn text, so that it misleads.
_CONTROLS = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff]"
)


def printable(text: str) -> str:
    """The text without control characters but tabs and ends of lines.

    Example:
        >>> printable("mm\\x1b[2J\\n")
        'mm[2J\\n'
    """
    return _CONTROLS.sub("", text)


def bar(share: float, width: int) -> str:
    """A bar of up to `width` characters, in eighths of one, for a share of 0 to 1."""
    full, rest = divmod(round(max(0.0, min(share, 1.0)) * width * 8), 8)
    return "█" * full + (chr(0x2590 - rest) if rest else "")


def ms(value: float) -> str:
    """Milliseconds with as many digits as matter."""
    digits = 0 if value >= 1000 else 1 if value >= 100 else 2 if value >= 0.01 or not value else 3
    return f"{value:,.{digits}f}"


def rounded(value: float, digits: int = 3) -> str:
    """A number with some digits, and never with an exponent.

    Example:
        >>> rounded(40212.4), rounded(999.7), rounded(0.0123), rounded(1.23e-5)
        ('40,212', '1,000', '0.0123', '0.0000123')
    """
    return f"{value:,.0f}" if abs(value) >= 10**digits - 0.5 else f"{Decimal(f'{value:.{digits}g}'):f}"


def percent(share: float) -> str:
    """A share of 0 to 1 as percent, with a decimal where it is small."""
    return f"{share:.0%}" if share >= 0.0995 else f"{share:.1%}"


def count(value: int) -> str:
    """A count as 11.2 M."""
    return _scaled(value, (("B", 10**9), ("M", 10**6), ("k", 10**3)), "")


def size(value: int) -> str:
    """Bytes as 44.9 MB."""
    return _scaled(value, (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)), " B")


def operations(value: float) -> str:
    """Floating-point operations as 1.5 TFLOP."""
    return _scaled(value, (("T", 10**12), ("G", 10**9), ("M", 10**6), ("k", 10**3)), " ") + "FLOP"


def duration(seconds: float) -> str:
    """A time in the unit that people say it in, as in '1.23 s', '71.2 min' and '4.5 h'."""
    unit, length = ("s", 1) if seconds < 60 else ("min", 60) if seconds < 7200 else ("h", 3600)
    return f"{rounded(seconds / length)} {unit}"


def plural(number: int, noun: str) -> str:
    """`1 step`, `2 steps`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def is_title(text: str) -> bool:
    """Whether a text has at most twelve words, for which a page has room in one line."""
    return len(text.split()) <= 12


def _scaled(value: float, units: tuple[tuple[str, int], ...], otherwise: str) -> str:
    for unit, scale in units:
        if value >= scale:
            return f"{value / scale:.1f} {unit}"
    return f"{rounded(value)}{otherwise}"
