"""Changes that PyTorch can make to a training script without a line of it, one file each.

Each replaces one thing of torch before the script uses it: a constructor's argument, or the call of
the model. They are applied in a process of their own, whose end undoes them.
"""

from __future__ import annotations

from collections.abc import Callable

from stepscope.capture.applied.amp import Amp
from stepscope.capture.applied.applied import Applied
from stepscope.capture.applied.compiled import Compile
from stepscope.capture.applied.compress import Compress
from stepscope.capture.applied.dataloader import Workers
from stepscope.capture.applied.ddp import Ddp
from stepscope.capture.applied.fsdp import Fsdp
from stepscope.capture.applied.fused_optimizer import Fused
from stepscope.capture.applied.zero import Zero

APPLIED: dict[str, Callable[..., Applied]] = {
    "amp": Amp,
    "fused_optimizer": Fused,
    "dataloader": Workers,
    "ddp": Ddp,
    "zero": Zero,
    "fsdp": Fsdp,
    "compress": Compress,
    "compile": Compile,
}

__all__ = ["APPLIED", "Applied"]
