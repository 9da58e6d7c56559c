"""Compare two runs: what became slower or faster, and what is only noise."""

from stepscope.diff.compare import VERDICTS, Comparison, Row, Side, compare

__all__ = ["VERDICTS", "Comparison", "Row", "Side", "compare"]
