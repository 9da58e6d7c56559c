"""See where a deep-learning training step spends its time."""

from stepscope.version import __version__

__all__ = ["__version__"]
