"""`dataloader`: batches are made by worker processes."""

from __future__ import annotations

from typing import Any

from stepscope.capture.applied.arguments import with_arguments


class Workers:
    """Each DataLoader is made with `num_workers=workers`."""

    def __init__(self, workers: int = 2) -> None:
        from torch.utils import data

        self._workers = workers
        self._made = 0
        with_arguments(data.DataLoader, {"num_workers": workers}, self._note)

    def evidence(self) -> dict[str, Any]:
        """How many loaders, with how many workers."""
        return {"count": self._made, "workers": self._workers}

    def _note(self, loader: Any) -> None:
        self._made += 1
