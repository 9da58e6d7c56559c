"""Derived facts: what a trace means. Steps, stages and modules, the report, the timeline, contexts."""
