"""Compare two runs: what became slower or faster, and what is only noise."""

from stepscope.diff.compare import VERDICTS, Row, RunComparison, Side, compare
from stepscope.diff.explanation import explain

__all__ = ["VERDICTS", "Row", "RunComparison", "Side", "compare", "explain"]
