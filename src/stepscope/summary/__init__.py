"""Facts about the training step of a trace: the content of every report."""

from stepscope.summary.report_facts import Summary, summarize

__all__ = ["Summary", "summarize"]
