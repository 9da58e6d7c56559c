"""`amp`: calls of the model, and of losses that are modules, under autocast to bfloat16."""

from typing import Any

from stepscope.record.applied.patches import around_outermost_calls, device_of


class Apply:
    """torch.autocast around each outermost module call; bfloat16 needs no gradient scaler."""

    def __init__(self) -> None:
        self._calls = 0
        self._device = "cpu"
        around_outermost_calls(self._call)

    def evidence(self) -> dict[str, Any]:
        return {"count": self._calls, "dtype": "bfloat16", "device": self._device}

    def _call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        import torch

        self._calls += 1
        self._device = device_of(module, self._device)
        with torch.autocast(self._device, dtype=torch.bfloat16):
            return call(module, *args, **kwargs)
