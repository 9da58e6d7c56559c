"""Called by PyTorch when it is imported: an entry point of the group `torch.backends`.

Next to nothing is imported where STEPSCOPE_CONTEXTS is not set (docs/contexts.md).
"""

from __future__ import annotations

import os


def autoload() -> None:
    """Begin to collect contexts where the environment says so."""
    if os.environ.get("STEPSCOPE_CONTEXTS"):
        from stepscope.capture.contexts import environment

        environment.begin()
