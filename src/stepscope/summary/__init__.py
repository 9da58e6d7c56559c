"""What a trace says of its training step, as plain facts: the content of every report."""

from stepscope.summary.facts import Summary, summarise

__all__ = ["Summary", "summarise"]
