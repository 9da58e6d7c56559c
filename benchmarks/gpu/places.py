"""Where things lie."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
RESULTS = Path(__file__).parent / "results"
# What travels to a machine without a network: packages, and which commit they travel with.
WHEELS = Path(__file__).parent / "wheels"
SITE = WHEELS / "site"
COMMIT = WHEELS / "COMMIT"
CAP_BYTES = 64 * 2**30  # of PyTorch, so that the edge of memory is near and that of a common card
