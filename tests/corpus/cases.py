"""The corpus: traces with one planted defect each, and clean ones, with their truth."""

from case import Case
from clean_steps import CLEAN_CASES
from defects import DEFECTS

__all__ = ["CLEAN_CASES", "DEFECTS", "Case"]
