"""The names of Python frames as PyTorch's profiler writes them."""

import re
import sys
from pathlib import PurePosixPath
from typing import NamedTuple

LIBRARY = re.compile(  # or code that Inductor generated
    r"(^|/)(torch|torchvision|triton|torchinductor_[^/]*|stepscope|site-packages|dist-packages|lib/python3)/"
)
_FRAME = re.compile(r"^(.*)\((\d{1,9})\): (.*)$")  # a longer number is not a line


class FrameName(NamedTuple):
    """A Python frame; `str` gives the name of its event."""

    file: str  # as recorded; PyTorch omits the folder of its package
    line: int  # in PyTorch's traces the first line of the function
    function: str

    def __str__(self) -> str:
        return f"{self.file}({self.line}): {self.function}"

    @classmethod
    def of(cls, name: str) -> "FrameName | None":
        """The frame of an event's name, None for other names."""
        match = _FRAME.match(name)
        return cls(match[1], int(match[2]), match[3]) if match else None


def is_users_frame(name: str) -> bool:
    """Whether an event is a Python frame of neither torch, nor its compilers, nor Python itself."""
    frame = FrameName.of(name)
    if frame is None or LIBRARY.search(frame.file):
        return False
    if not frame.file.endswith(".py") and not frame.file.startswith("<ipython-"):
        return False
    return PurePosixPath(frame.file).parts[0].removesuffix(".py") not in sys.stdlib_module_names
