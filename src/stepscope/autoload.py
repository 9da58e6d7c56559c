"""Entry point of the group `torch.backends`, which PyTorch calls when it is imported.

It imports almost nothing unless STEPSCOPE_CONTEXTS is set (docs/guide/contexts.md).
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Start collecting contexts if STEPSCOPE_CONTEXTS is set."""
    if os.environ.get("STEPSCOPE_CONTEXTS"):
        from stepscope.record.contexts import begin

        begin()
