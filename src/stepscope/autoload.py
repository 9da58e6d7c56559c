"""Entry point of the group `torch.backends`, which PyTorch calls when it is imported.

It imports almost nothing unless STEPSCOPE_CONTEXTS (docs/guide/contexts.md) or STEPSCOPE_WATCH
(docs/guide/watch.md) is set.
"""

import os


def autoload() -> None:
    """Start what the environment asks for."""
    if os.environ.get("STEPSCOPE_CONTEXTS"):
        from stepscope.record.contexts import begin

        begin()
    if output := os.environ.get("STEPSCOPE_WATCH"):
        from stepscope.record.api import watch_from_environment

        watch_from_environment(output)
