"""Runs tiny jobs that may hang, and writes the dumps that PyTorch's flight recorder would leave.

A rank's program is a list of calls. A job runs until no call can finish any more: a collective
finishes once all members of its group have made the same call as their k-th, a send with its recv.
The form of the dumps is that of FlightRecorderDetail.hpp, version 2.10.
"""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CREATED_NS = 1_790_000_000_000_000_000
WORLD = "0"


@dataclass(frozen=True)
class Call:
    """A call of a rank; `peer` is that of a send or recv, `batch` the number of its batch."""

    name: str
    line: int
    group: str = WORLD
    count: int = 8
    dtype: str = "Float"
    peer: int = -1
    batch: int = 0

    @property
    def agreement(self) -> tuple[object, ...]:
        return self.name, self.count, self.dtype


@dataclass
class Job:
    """A job of ranks.

    Attributes:
        groups: the ranks of each group, besides that of all ranks.
        is_async: a rank makes all its calls without waiting, as with NCCL.
        stalled: groups whose transfers never finish.
    """

    programs: Mapping[int, Sequence[Call]]
    groups: Mapping[str, Sequence[int]]
    is_async: bool = False
    stalled: Sequence[str] = ()

    def __post_init__(self) -> None:
        self.members = {WORLD: sorted(self.programs), **self.groups}
        self.done: dict[int, list[bool]] = {rank: [] for rank in self.programs}
        self.keys = {rank: self._keys(rank) for rank in self.programs}
        self.made: dict[tuple[object, ...], list[tuple[int, int]]] = {}
        while self._make_calls() | self._finish_calls():
            pass

    def _keys(self, rank: int) -> list[tuple[object, ...]]:
        """What the calls that belong together share: their group, or both ranks, and their number."""
        seen: dict[tuple[object, ...], int] = {}
        keys: list[tuple[object, ...]] = []
        for call in self.programs[rank]:
            pair = (rank, call.peer) if call.name == "send" else (call.peer, rank)
            kind = (call.group, *pair) if call.peer >= 0 else (call.group,)
            seen[kind] = seen.get(kind, 0) + 1
            keys.append((*kind, seen[kind]))
        return keys

    def _make_calls(self) -> bool:
        changed = False
        for rank, program in self.programs.items():
            done = self.done[rank]
            while len(done) < len(program) and (self.is_async or all(done) or self._is_in_batch(rank)):
                self.made.setdefault(self.keys[rank][len(done)], []).append((rank, len(done)))
                done.append(False)
                changed = True
        return changed

    def _is_in_batch(self, rank: int) -> bool:
        at = len(self.done[rank])
        batch = self.programs[rank][at].batch
        return batch > 0 and self.programs[rank][at - 1].batch == batch

    def _finish_calls(self) -> bool:
        ready = [key for key, made in self.made.items() if self._can_finish(made)]
        for key in ready:
            for rank, at in self.made.pop(key):
                self.done[rank][at] = True
        return bool(ready)

    def _can_finish(self, made: list[tuple[int, int]]) -> bool:
        calls = [self.programs[rank][at] for rank, at in made]
        if calls[0].group in self.stalled:
            return False
        if calls[0].peer >= 0:
            return len(calls) == 2 and len({call.count for call in calls}) == 1
        return (
            len(calls) == len(self.members[calls[0].group]) and len({call.agreement for call in calls}) == 1
        )

    def dump(
        self, rank: int, *, capacity: int = 2000, only_active: bool = False, batches_count: bool = True
    ) -> dict[str, Any]:
        """The dump of a rank; its buffer holds so many calls."""
        config = {
            name: {
                "name": name,
                "desc": "default_pg" if name == WORLD else f"mesh_{name}",
                "ranks": str(list(members)),
            }
            for name, members in self.members.items()
            if rank in members
        }
        entries = with_numbers(self._entries(rank), batches_count)[-capacity:]
        if only_active:
            entries = [entry for entry in entries if entry["state"] != "completed"]
        return {
            "version": "2.10",
            "pg_config": config,
            "comm_lib_version": "2.27.5",
            "pg_status": {},
            "entries": entries,
        }

    def _entries(self, rank: int) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = []
        program, done = self.programs[rank], self.done[rank]
        p2p = 0
        for at, is_done in enumerate(done):
            call = program[at]
            in_batch = call.batch > 0
            starts_batch = in_batch and (at == 0 or program[at - 1].batch != call.batch)
            if call.peer >= 0 and (not in_batch or starts_batch):
                p2p += 1
            entries.append(self._entry(rank, at, len(entries), p2p, is_done and not in_batch))
            if in_batch and (at + 1 == len(done) or program[at + 1].batch != call.batch):
                batch_done = all(
                    ok for ok, one in zip(done, program, strict=False) if one.batch == call.batch
                )
                end = self._entry(rank, at, len(entries), p2p, batch_done)
                entries.append(
                    {**end, "profiling_name": "nccl:coalesced", "input_sizes": [], "output_sizes": []}
                )
        return entries

    def _entry(self, rank: int, at: int, record: int, p2p: int, is_done: bool) -> dict[str, Any]:
        call = self.programs[rank][at]
        members = self.members[call.group]
        name = f"nccl:{call.name}"
        if call.peer >= 0:
            arrow = "->" if call.name == "send" else "<-"
            name += f" {members.index(rank)}{arrow}{members.index(call.peer)}"
        scale = len(members) if call.name == "all_gather" else 1
        return {
            "frames": [
                {
                    "name": call.name,
                    "filename": "/venv/lib/python3.11/site-packages/torch/distributed/c.py",
                    "line": 1,
                },
                {"name": "step", "filename": "/home/me/train.py", "line": call.line},
                {"name": "<module>", "filename": "/home/me/train.py", "line": 99},
            ],
            "record_id": record,
            "pg_id": list(self.members).index(call.group),
            "process_group": (call.group, "default_pg" if call.group == WORLD else f"mesh_{call.group}"),
            "thread_name": "pt_main_thread",
            "thread_id": "7",
            "in_batch": call.batch > 0,
            "p2p_seq_id": p2p,
            "op_id": record + 1,
            "profiling_name": name,
            "time_created_ns": CREATED_NS + at * 1000 + rank,
            "input_sizes": [[call.count]],
            "input_dtypes": [call.dtype],
            "output_sizes": [[call.count * scale]],
            "output_dtypes": [call.dtype],
            "state": "completed" if is_done else "started",
            "time_discovered_started_ns": CREATED_NS,
            "time_discovered_completed_ns": CREATED_NS if is_done else None,
            "retired": is_done,
            "timeout_ms": 600_000,
            "is_p2p": call.peer >= 0,
        }

    def write(
        self, folder: Path, ranks: Sequence[int] | None = None, as_json: bool = False, **options: Any
    ) -> list[Path]:
        """One file for each of the ranks, written ten minutes after the calls."""
        folder.mkdir(exist_ok=True)
        files = []
        for rank in self.programs if ranks is None else ranks:
            dump = self.dump(rank, **options)
            for entry in dump["entries"] if as_json else ():
                del entry["frames"]
            path = folder / f"nccl_trace_rank_{rank}"
            path.write_bytes(json.dumps(dump).encode() if as_json else pickle.dumps(dump, 2))
            os.utime(path, ns=(CREATED_NS + 600 * 10**9,) * 2)
            files.append(path)
        return files


def with_numbers(entries: list[dict[str, Any]], batches_count: bool) -> list[dict[str, Any]]:
    """Numbers as NCCL's groups count: a batch of messages takes one of the collectives, on its ranks.

    Args:
        batches_count: whether a batch takes a number of the messages, too.
    """
    last: dict[str, tuple[int, bool, int]] = {}
    for entry in entries:
        group, number = entry["process_group"][0], entry["p2p_seq_id"]
        count, was_message, batch = last.get(group, (0, False, 0))
        is_batch = entry["is_p2p"] and entry["in_batch"]
        is_new = not entry["is_p2p"] or (is_batch and not (was_message and batch == number))
        last[group] = count + is_new, entry["is_p2p"], number
        entry["collective_seq_id"] = count + is_new
        if is_batch and not batches_count:
            entry["p2p_seq_id"] = 0
        del entry["in_batch"]
    return entries


def steps(count: int, group: str = WORLD) -> list[Call]:
    """Calls of some healthy steps: parameters are gathered, gradients reduced."""
    return [
        call
        for _ in range(count)
        for call in (Call("all_gather", 10, group, 32), Call("reduce_scatter", 20, group, 32))
    ]
