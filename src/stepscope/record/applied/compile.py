"""`compile`: torch.compile on each model that the script calls."""

from typing import Any

from stepscope.record.applied.patches import around_outermost_calls, is_model


class Apply:
    """`model.compile()` before its first call compiles the script's own object."""

    def __init__(self) -> None:
        self._compiled: dict[int, Any] = {}
        around_outermost_calls(self._call)

    def evidence(self) -> dict[str, Any]:
        return {"count": len(self._compiled)}

    def _call(self, module: Any, call: Any, args: Any, kwargs: Any) -> Any:
        if id(module) not in self._compiled and is_model(module):
            self._compiled[id(module)] = module
            module.compile()
        return call(module, *args, **kwargs)
