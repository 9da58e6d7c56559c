"""The compiled reader of a snapshot's history against the unpickler alone."""

from __future__ import annotations

import os
import pickle
import random
from typing import Any

import pytest

from stepscope.errors import IngestError
from stepscope.read.memory_snapshot import memory_snapshot
from stepscope.trace.trace import Trace

_TABLES = ("memory_events", "allocations", "stacks", "segments", "blocks")
_MUTATIONS = int(os.environ.get("STEPSCOPE_FUZZ_EXAMPLES", "120"))
_FRAMES = [{"name": f"f{n}", "filename": f"/p/m{n}.py", "line": n} for n in range(300)]


def read(data: bytes) -> Trace | str:
    try:
        return memory_snapshot._snapshot(data)
    except IngestError as error:
        return str(error)


def read_in_python(data: bytes, monkeypatch: pytest.MonkeyPatch) -> Trace | str:
    with monkeypatch.context() as patch:
        patch.setattr(memory_snapshot, "CompiledHistory", lambda *parts: None)
        return read(data)


def rows(found: Trace | str) -> Any:
    if isinstance(found, str):
        return found
    return {name: list(found[name].rows()) for name in _TABLES}


def random_event(chance: random.Random, stacks: list[list[Any]]) -> dict[str, Any]:
    """An event with some of the keys that PyTorch writes, in any order, of any size."""
    values = {
        "action": chance.choice(["alloc", "free_requested", "free_completed", "segment_alloc"]),
        "addr": chance.choice([chance.getrandbits(40), chance.getrandbits(8), 1 << 63, 0, -5]),
        "size": chance.choice([chance.getrandbits(8), chance.getrandbits(16), 1 << 31, 1 << 40]),
        "stream": chance.choice([0, 7, 1 << 40]),
        "time_us": 1_700_000_000_000_000 + chance.getrandbits(20),
    }
    frames = chance.choice([chance.choice(stacks), chance.choices(_FRAMES, k=3), [], None])
    extra = {"device_free": 5, "user_metadata": chance.choice(["", "step", None]), "other": "x"}
    extra |= {"pool_id": (chance.getrandbits(9), 0), "shared_pool": (0, 0), "flag": chance.random() < 0.5}
    values |= {key: value for key, value in extra.items() if chance.random() < 0.03}
    if frames is not None:
        values["frames"] = frames
    keys = sorted(values, key=lambda key: chance.random()) if chance.random() < 0.1 else values
    return {key: values[key] for key in keys if key == "action" or chance.random() > 0.01}


def random_snapshot(seed: int, protocol: int, events: int = 1500) -> bytes:
    chance = random.Random(seed)
    stacks = [chance.choices(_FRAMES, k=chance.choice([1, 2, 20])) for _ in range(30)]
    traces = [[random_event(chance, stacks) for _ in range(chance.randint(0, events))] for _ in range(3)]
    blocks = [{"size": 512, "state": "active_allocated", "frames": stacks[0], "address": 64}]
    segments = [{"address": 64, "total_size": 512, "blocks": blocks, "frames": stacks[1]}]
    return pickle.dumps({"segments": segments, "device_traces": traces}, protocol)


@pytest.mark.parametrize("protocol", [2, 4, 5])
@pytest.mark.parametrize("seed", range(2))
def test_both_read_the_same(seed: int, protocol: int, monkeypatch: pytest.MonkeyPatch) -> None:
    data = random_snapshot(seed, protocol)
    assert rows(read(data)) == rows(read_in_python(data, monkeypatch))


# What versions of PyTorch write besides: 2.13 a pair of numbers.
@pytest.mark.parametrize("further", [{}, {"pool_id": (1, 0), "compile_context": "0/0", "new": True}])
def test_most_events_are_read_at_once(further: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    add = memory_snapshot.History.take
    monkeypatch.setattr(
        memory_snapshot.History,
        "take",
        lambda self, target, items: taken.extend(items) or add(self, target, items),
    )
    chance = random.Random(1)
    stacks = [chance.choices(_FRAMES, k=20) for _ in range(30)]
    events = [
        {"action": "alloc", "addr": n << 20, "size": 512, "stream": 0, "frames": [*stacks[n % 30]]}
        | {key: (*value,) if isinstance(value, tuple) else value for key, value in further.items()}
        for n in range(20_000)
    ]
    trace = read(pickle.dumps({"device_traces": [events]}, 4))
    assert len(trace["memory_events"]) == 20_000
    assert sum("action" in item for item in taken) < 200


def test_a_damaged_file_is_refused_or_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(5)
    whole = random_snapshot(5, 4, events=60)
    different = 0
    for _ in range(_MUTATIONS):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 3)):
            kind, at = chance.random(), chance.randrange(len(data))
            if kind < 0.6:
                data[at] = chance.randrange(256)
            elif kind < 0.8:
                del data[at : at + chance.randint(1, 9)]
            else:
                data[at:at] = data[: chance.randint(1, 40)]
        found, expected = read(bytes(data)), read_in_python(bytes(data), monkeypatch)
        refused = isinstance(expected, str), isinstance(found, str)
        different += refused != (True, True) and rows(found) != rows(expected)
    # Damage may write over a value of the memo, which both then count differently.
    assert different <= max(1, _MUTATIONS // 500)
