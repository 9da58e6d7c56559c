"""The files of a job: a Kineto trace for each rank, and the truth next to it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from generated_jobs.faults import RANKS_PER_NODE
from generated_jobs.job import Job
from generated_jobs.template import in_us, repeated
from generated_jobs.warp import moved
from stepscope.base.arrays import Times


def write_job(job: Job, folder: Path) -> Path:
    """Write `node-N/rankM.json` for each rank, and next to the folder `FOLDER.truth.json`."""
    for rank in range(job.ranks):
        node = folder / f"node-{rank // RANKS_PER_NODE}"
        node.mkdir(parents=True, exist_ok=True)
        write_rank(job, rank, node / f"rank{rank}.json")
    folder.with_name(f"{folder.name}.truth.json").write_text(
        json.dumps([one.to_json() for one in job.planted], indent=1)
    )
    return folder


def write_rank(job: Job, rank: int, path: Path, named: bool = True) -> None:
    """Write the trace of a rank; with `named` it says which rank it is."""
    trace: dict[str, Any] = {
        "baseTimeNanoseconds": 0,
        "deviceProperties": [{"id": 0, "name": "V100"}],
        "traceEvents": [in_us(event) for event in _events(job, rank)],
    }
    if named:
        trace["distributedInfo"] = {"rank": rank, "world_size": job.ranks}
    path.write_text(json.dumps(trace))


def _events(job: Job, rank: int) -> Iterator[dict[str, Any]]:
    template = job.template
    names = set(job.pieces.calls)
    for step in range(job.steps):
        call = 0
        old, new, waits = _moves(job, rank, step)
        yield from (_wait(job, step, *wait) for wait in waits)
        for event in repeated(moved(template.events, old, new), step):
            if event["cat"] == "kernel" and event["name"] in names:
                yield _placed(job, rank, step, call, event)
                call += 1
            else:
                yield event


def _placed(job: Job, rank: int, step: int, call: int, event: dict[str, Any]) -> dict[str, Any]:
    """The kernel of a call: from this rank's arrival to the end that all share."""
    start, end = (times[rank, step, call] for times in (job.run.start, job.run.end))
    arguments = {**event["args"], **job.group_arguments(call, rank)}
    return {**event, "ts": int(start), "dur": int(end - start), "args": arguments}


def _moves(job: Job, rank: int, step: int) -> tuple[Times, Times, list[tuple[int, int, int]]]:
    """The template's edges, when this rank came to them, and its waits: edge, start and end.

    A wait lies between two edges: what the CPU did before it takes no longer.
    """
    pieces = job.pieces
    lengths = job.own_ns * job.factors[rank, step][job.classes]
    waited = np.bincount(pieces.resumed, job.run.waited[rank, step], len(pieces.edges))
    after = job.run.begin[rank, step] + np.concatenate([[0], np.cumsum(lengths)])
    after = np.ceil(after + np.cumsum(waited)).astype(np.int64)
    at = np.flatnonzero(waited > 0)
    before = np.floor(after[at] - waited[at]).astype(np.int64)
    old = np.concatenate([pieces.edges, pieces.edges[at] - 1])
    new = np.concatenate([after, before])
    order = np.argsort(old, kind="stable")
    waits = list(zip(at.tolist(), before.tolist(), after[at].tolist(), strict=True))
    return old[order], np.maximum.accumulate(new[order]), waits


def _wait(job: Job, step: int, edge: int, start: int, end: int) -> dict[str, Any]:
    """The call in which the CPU waits: of the thread that launches next."""
    at = job.pieces.edges[edge]
    calls = [one for one in job.template.events if one["cat"] == "cuda_runtime"]
    later = [one for one in calls if one["ts"] >= at] or calls[-1:]
    thread = min(later, key=lambda one: one["ts"])
    return {
        "ph": "X",
        "cat": "cuda_runtime",
        "name": "cudaDeviceSynchronize",
        "pid": thread["pid"],
        "tid": thread["tid"],
        "ts": start,
        "dur": end - start,
        "args": {"correlation": 910_000 + edge + 1_000_000 * step},
    }
