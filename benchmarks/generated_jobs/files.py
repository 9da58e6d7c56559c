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
from stepscope.arrays import Times


def write_job(job: Job, folder: Path) -> Path:
    """Write `node-N/rankM.json` for each rank, and next to the folder `FOLDER.truth.json`."""
    for rank in range(job.ranks):
        node = folder / f"node-{rank // RANKS_PER_NODE}"
        node.mkdir(parents=True, exist_ok=True)
        write_rank(job, rank, node / f"rank{rank}.json")
    folder.with_name(f"{folder.name}.truth.json").write_text(
        json.dumps([one.to_json() for one in job.faults], indent=1)
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
        old, new = _edges(job, rank, step)
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


def _edges(job: Job, rank: int, step: int) -> tuple[Times, Times]:
    """The template's edges, and when this rank came to them in this step."""
    pieces = job.pieces
    lengths = job.own_ns * job.factors[rank, step][job.classes]
    for call, edge in enumerate(pieces.resumed.tolist()):
        lengths[edge - 1] += job.run.waited[rank, step, call]
    edges = job.run.begin[rank, step] + np.concatenate([[0], np.cumsum(lengths)])
    return pieces.edges, np.rint(edges).astype(np.int64)
