"""Two runs compared: what became slower, what faster, and whether one can tell."""

from stepscope.diff.compare import VERDICTS, Comparison, Row, Side, compare

__all__ = ["VERDICTS", "Comparison", "Row", "Side", "compare"]
