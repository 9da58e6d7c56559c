"""The sketches of a job, without its files."""

from __future__ import annotations

import numpy as np

from generated_jobs.faults import RANKS_PER_NODE
from generated_jobs.job import Job
from stepscope.ranks.calls import CallColumns, CallKind, Calls, ranks_in_short
from stepscope.ranks.sketch import Sketch
from stepscope.trace.schema import STAGES


def sketches(job: Job) -> list[Sketch]:
    """One sketch for each rank, as the map makes them of the job's files."""
    return [_sketch(job, rank) for rank in range(job.ranks)]


def _sketch(job: Job, rank: int) -> Sketch:
    pieces, factors = job.pieces, job.factors[rank]
    scale = factors[:, job.classes]  # steps, pieces
    lengths = np.diff(job.run.begin[rank])
    work = dict(zip(STAGES, (scale @ pieces.stages).T, strict=True))
    work["data_loading"] = scale @ pieces.loading_ns
    work["host"] = scale @ pieces.host_ns
    run = job.run
    return Sketch(
        rank=rank, world_size=job.ranks, node=f"node-{rank // RANKS_PER_NODE}", device="V100",
        steps=list(range(job.steps)), length=_ms(lengths),
        work={name: _ms(values) for name, values in work.items() if values.any()},
        waiting=_ms((run.end - run.start)[rank].sum(axis=1)), idle={},
        kernels=_kernels(job, scale.mean(axis=0)), calls=_calls(job, rank),
    )  # fmt: skip


def _kernels(job: Job, scale: np.ndarray) -> dict[str, tuple[float, float]]:
    found = {
        name[:120]: (float(len(lengths)), float(np.median(lengths * scale[place])) / 1e6)
        for name, (lengths, place) in job.pieces.kernels.items()
    }
    longest = sorted(found, key=lambda name: -found[name][0] * found[name][1])
    return {name: found[name] for name in longest[:100]}


def _calls(job: Job, rank: int) -> Calls:
    run, calls = job.run, len(job.plan)
    arguments = [job.group_arguments(call, rank) for call in range(calls)]
    kinds = [
        CallKind(one["Collective name"].replace("_", ""), one["Process Group Name"],
                 ranks_in_short(one["Process Group Ranks"])[:60], one["Group size"])
        for one in arguments
    ]  # fmt: skip
    distinct = list(dict.fromkeys(kinds))
    own = np.cumsum(
        np.concatenate(
            [np.zeros((job.steps, 1)), job.factors[rank][:, job.classes] * job.own_ns], axis=1
        ),
        axis=1,
    )
    arrival = own[:, job.pieces.arrival]
    columns = CallColumns(*(
        np.broadcast_to(np.asarray(values), (job.steps, calls)).astype(np.int64).ravel()
        for values in (
            [distinct.index(kind) for kind in kinds], np.arange(job.steps)[:, None],
            run.start[rank] - run.begin[rank, 0], (run.end - run.start)[rank],
            arrival, np.maximum(own[:, job.pieces.resumed], arrival),
            [4 * one["In msg nelems"] for one in arguments],
            [4 * one["Out msg nelems"] for one in arguments], 0, 0, 0, 0,
        )
    ))  # fmt: skip
    return Calls(
        distinct, [""], int(run.begin[rank, 0]), own[:, -1].astype(int).tolist(), columns.pack()
    )


def _ms(values: np.ndarray) -> list[float]:
    return np.round(values / 1e6, 4).tolist()
