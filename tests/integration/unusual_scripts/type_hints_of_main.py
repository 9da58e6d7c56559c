from __future__ import annotations
import dataclasses, enum, typing
@dataclasses.dataclass
class Point:
    x: int
    near: Point | None = None
class Color(enum.Enum):
    RED = 1
print(Point(1, Point(2)), Color.RED, repr(Color), {name: str(kind) for name, kind in Point.__annotations__.items()})
print(Point.__qualname__, Point.__module__, typing.NamedTuple("Pair", [("a", int)])(1))
