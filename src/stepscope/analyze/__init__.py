"""Rules that report what slows a training step, and the findings that they yield."""

from stepscope.analyze.analysis import apply_rules
from stepscope.analyze.finding import LEVELS, Finding, Gain, Place, with_findings
from stepscope.analyze.rule import Rule, discover_rules, load_rules
from stepscope.analyze.rule_context import RuleContext, glob
from stepscope.facts.contexts import with_contexts
from stepscope.trace.trace import Trace


def __getattr__(name: str) -> list[Rule]:
    """`RULES`, found at the first use: packages that add one import this one."""
    if name != "RULES":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = found = discover_rules()
    return found


def fill_findings(trace: Trace) -> Trace:
    """The trace with its tables `findings` and `evidence`, by all rules."""
    from stepscope.analyze import RULES

    context = RuleContext(trace)
    found = with_findings(trace, apply_rules(context, RULES))
    # The evidence names nodes of this tree.
    return found if context.contexts is None else with_contexts(found, context.contexts)


__all__ = ["LEVELS", "RULES", "Finding", "Gain", "Place", "Rule", "RuleContext", "apply_rules"]
__all__ += ["discover_rules", "fill_findings", "glob", "load_rules", "with_findings"]
