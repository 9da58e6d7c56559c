"""`dataloader`: worker processes make the batches."""

from typing import Any

from stepscope.record.applied.patches import with_arguments


class Apply:
    """Each DataLoader gets `num_workers=workers`."""

    def __init__(self, workers: int = 2) -> None:
        from torch.utils import data

        self._workers = workers
        self._loaders = 0
        with_arguments(data.DataLoader, {"num_workers": workers}, self._note)

    def evidence(self) -> dict[str, Any]:
        return {"count": self._loaders, "workers": self._workers}

    def _note(self, loader: Any) -> None:
        self._loaders += 1
