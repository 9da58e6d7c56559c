"""Builds tiny traces from a few readable lines, for tests and documentation.

    trace = drawn_trace('''
        main     |  0 100 | ProfilerStep#0
        main     | 10  20 | aten::mm         | seq=1
        main     | 12  14 | cudaLaunchKernel | corr=7
        stream 7 | 30  50 | sgemm            | corr=7
    ''')

Each line is one event: its track, start and end in microseconds, name, and options. Tracks named
`stream …` are device streams, and so are `comm …` for collectives. The category follows from track
and name (`cat=` overrides it). Options: `corr` (correlation), `seq` (autograd sequence number),
`fwd` (number of the forward thread), `bytes`, `scope` (of a compiled operation), `cat`. Any other
option becomes an argument of the event; its value is JSON or else text, and `_` in its key means a
space (`In_msg_nelems=10`), `__` an underscore.
A line whose second field is `arrow` links two named events: `fwdbwd | arrow | aten::mm >
MmBackward0`.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stepscope.trace.arguments import ArgumentBlock, Arguments
from stepscope.trace.builder import Arrows, Parts, build
from stepscope.trace.table import Text
from stepscope.trace.trace import Metadata, Trace

_US = 1000  # ns
_OPTIONS = {"corr": "correlation", "seq": "sequence", "fwd": "forward_thread", "bytes": "bytes"}
_BY_NAME = (
    (
        re.compile(
            r"^(ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)|##|stepscope\.(module|optimizer|evaluation|checkpointing|block):)"
        ),
        "annotation",
    ),
    (re.compile(r"#step_num=\d+$"), "annotation"),
    (re.compile(r"^(cuda|hip)[A-Z]|^cuLaunch"), "runtime"),
    (re.compile(r"^nn\.Module: |\.py\(\d+\): "), "python"),
)
_BY_DEVICE_NAME = (
    (re.compile(r"^Memcpy"), "memcpy"),
    (re.compile(r"^Memset"), "memset"),
    (re.compile(r"Synchronize|Stream Wait"), "sync"),
)


@dataclass
class _Drawing:
    tracks: dict[str, int] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)
    arguments: list[bytes] = field(default_factory=list)
    arrows: list[tuple[str, str, str]] = field(default_factory=list)


def drawn_trace(text: str, **metadata: Any) -> Trace:
    """Build a trace, before annotation, from lines like those in this module's example.

    Args:
        text: one event per line; blank lines and lines that begin with `--` are skipped.
        metadata: fields of `Metadata`, such as `ranks=(3,)`.

    Raises:
        ValueError: if a line does not have this form.
    """
    drawing = _Drawing()
    for line in map(str.strip, text.splitlines()):
        if line and not line.startswith("--"):
            _draw(drawing, [part.strip() for part in line.split("|")])
    return build(_parts(drawing, Metadata(**metadata)))


def _draw(drawing: _Drawing, parts: list[str]) -> None:
    if len(parts) == 3 and parts[1] == "arrow":
        tail, _, head = parts[2].partition(">")
        drawing.arrows.append((parts[0], tail.strip(), head.strip()))
        return
    if len(parts) not in (3, 4) or len(parts[1].split()) != 2:
        raise ValueError(f"expected 'track | start end | name | options', found {parts}")
    start, end = map(float, parts[1].split())
    options = dict(option.split("=", 1) for option in parts[3].split()) if len(parts) == 4 else {}
    known = {_OPTIONS[key]: int(options.pop(key)) for key in list(options) if key in _OPTIONS}
    drawing.events.append(
        {
            "track": drawing.tracks.setdefault(parts[0], len(drawing.tracks)),
            "name": parts[2],
            "category": options.pop("cat", None) or _category(parts[0], parts[2]),
            "scope": options.pop("scope", None),
            "start_ns": round(start * _US),
            "duration_ns": round((end - start) * _US),
            **known,
        }
    )
    arguments = {_key(name): _value(text) for name, text in options.items()}
    drawing.arguments.append(json.dumps(arguments).encode())


def _key(name: str) -> str:
    return "_".join(part.replace("_", " ") for part in name.split("__"))


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _category(track: str, name: str) -> str:
    device = _is_device(track)
    rules = _BY_DEVICE_NAME if device else _BY_NAME
    default = "kernel" if device else "cpu_op"
    return next((category for test, category in rules if test.search(name)), default)


def _is_device(track: str) -> bool:
    return track.startswith(("stream", "comm"))


def _parts(drawing: _Drawing, metadata: Metadata) -> Parts:
    events = drawing.events
    columns: dict[str, Any] = {
        name: Text.of(event[name] for event in events) for name in ("name", "category", "scope")
    }
    columns |= {
        name: np.array([event.get(name, -1) for event in events], np.int64)
        for name in ("track", "start_ns", "duration_ns", *_OPTIONS.values())
    }
    columns["source"] = np.arange(len(events))
    blocks = (ArgumentBlock.of(range(len(events)), drawing.arguments),) if events else ()
    return Parts(
        events=columns,
        tracks=_tracks(drawing, metadata),
        arrows=_arrows(drawing),
        metadata=metadata,
        arguments=Arguments(blocks),
    )


def _tracks(drawing: _Drawing, metadata: Metadata) -> dict[str, Any]:
    names = list(drawing.tracks)
    return {
        "kind": ["device" if _is_device(name) else "cpu" for name in names],
        "name": names,
        "rank": [metadata.ranks[0]] * len(names),
        "process": ["0" if _is_device(name) else "1" for name in names],
        "thread": [name.split()[-1] for name in names],
        "device": [0 if _is_device(name) else -1 for name in names],
        "stream": [int((re.findall(r"\d+", name) or [0])[0]) if _is_device(name) else -1 for name in names],
    }


def _arrows(drawing: _Drawing) -> Arrows:
    """Both ends of each arrow, at the start of the events that it names."""
    ends = [
        (kind, identity, is_head, next(event for event in drawing.events if event["name"] == name))
        for identity, (kind, tail, head) in enumerate(drawing.arrows)
        for is_head, name in ((False, tail), (True, head))
    ]
    return Arrows(
        kind=Text.of(end[0] for end in ends),
        identity=np.array([end[1] for end in ends], np.int64),
        is_head=np.array([end[2] for end in ends], np.bool_),
        time_ns=np.array([end[3]["start_ns"] for end in ends], np.int64),
        track=np.array([end[3]["track"] for end in ends], np.int32),
    )
