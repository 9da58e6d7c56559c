"""Changes that PyTorch can make to an unmodified training script, one file each.

Each file is named after its change and has a class `Apply`, which takes the change's parameters.
It replaces one thing of torch before the script uses it: a constructor argument, or the call of the
model. Changes are applied in a process of their own, so nothing needs to be undone.

The declaration of a change is in `stepscope/models/whatif/changes`, since this package runs in the user's
process and must not load the analysis.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, Protocol


class Applied(Protocol):
    """A change in force."""

    def evidence(self) -> dict[str, Any]:
        """What it was applied to: `count` and details; a count of 0 means that nothing changed."""
        ...


def apply_change(name: str, parameters: Mapping[str, Any]) -> Applied:
    """Make a change to everything that the script does from now on."""
    return import_module(f"{__name__}.{name}").Apply(**parameters)
