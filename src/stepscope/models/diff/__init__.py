"""Compare two runs: what became slower or faster, and what is only noise."""

from stepscope.models.diff.compare import Row, RunComparison, Side, compare, explain

__all__ = ["Row", "RunComparison", "Side", "compare", "explain"]
