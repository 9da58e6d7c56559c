"""Which lines of the user's code an operator runs for, as ranges in the trace.

While a step is recorded, each call of torch's API is a range named by the lines that led to it,
outermost first. Lines inside torch and inside stepscope are left out.
"""

import os
import sys
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from stepscope.record.call_sites import user_frames
from stepscope.record.patch import replace
from stepscope.record.ranges import Range

LINES_PREFIX = "stepscope.lines: "
MadeAt = dict[tuple[int, str], list[tuple[str, int]]]  # lines by the module's id and the parameter's name
_DEEPEST = 64  # frames that a label names
_Mode: Any = TorchFunctionMode
_Module: Any = torch.nn.Module
_overrides: Any = torch.overrides


class LineRanges(TorchFunctionMode):
    """Opens a range around every call of torch's API, in the thread that entered it."""

    def __init__(self) -> None:
        super().__init__()
        self._labels: dict[tuple[Any, ...], str] = {}
        self._entered = False

    def start(self) -> None:
        self._entered = True
        _Mode.__enter__(self)

    def stop(self) -> None:
        """No more of them; leaves a mode of the script's that lies on top where it is."""
        modes = _overrides._get_current_function_mode_stack()
        if self._entered and modes and modes[-1] is self:
            _Mode.__exit__(self, None, None, None)
        self._entered = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Part of torch's protocol."""
        if not self._entered or torch.compiler.is_compiling() or _marks_a_range(func):
            return func(*args, **(kwargs or {}))
        label = self._label(sys._getframe(1))
        if label is None:
            return func(*args, **(kwargs or {}))
        with Range(label):
            return func(*args, **(kwargs or {}))

    def _label(self, frame: FrameType | None) -> str | None:
        """None for a call of ours."""
        frames = places_above(frame)
        if not frames:
            return None
        key = tuple((id(code), line) for code, line in frames)
        label = self._labels.get(key)
        if label is None:
            label = self._labels[key] = LINES_PREFIX + "|".join(
                f"{_absolute(code.co_filename)}:{line}" for code, line in reversed(frames)
            )
        return label


def _marks_a_range(func: Any) -> bool:
    """Whether a function is the profiler's own, which opens or closes a range."""
    packet = getattr(func, "_overloadpacket", func)
    return getattr(packet, "_qualified_op_name", "").startswith("profiler::")


def places_above(frame: FrameType | None) -> list[tuple[CodeType, int]]:
    """Code and line of the frames outside torch and stepscope, innermost first."""
    places = ((one.f_code, one.f_lineno) for one in user_frames(frame, _DEEPEST))
    return [place for place in places if not place[0].co_filename.startswith("<")]


def _absolute(file: str) -> str:
    return os.path.abspath(file)  # noqa: PTH100, `Path.absolute` keeps `..`


class Creations:
    """The lines that made each parameter, noted as modules register them."""

    def __init__(self) -> None:
        self.lines: MadeAt = {}
        original, creations = _Module.register_parameter, self

        def register_parameter(module: Any, name: str, param: Any) -> None:
            original(module, name, param)
            if param is not None:
                frames = places_above(sys._getframe(1))
                creations.lines[id(module), name] = [
                    (_absolute(code.co_filename), line) for code, line in reversed(frames)
                ]

        self.close = replace(_Module, "register_parameter", register_parameter)
