"""Where torch runs a backward pass: the function that hooks of backward wrap."""

from __future__ import annotations

from typing import Any

import torch

AUTOGRAD: Any = torch.autograd
# torch before 2.2 calls the engine itself.
ENGINE = "_engine_run_backward" if hasattr(AUTOGRAD, "_engine_run_backward") else "backward"
