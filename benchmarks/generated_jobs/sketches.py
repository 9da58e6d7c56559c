"""The sketches of a job, without its files."""

from __future__ import annotations

import numpy as np

from generated_jobs.faults import RANKS_PER_NODE
from generated_jobs.job import Job
from stepscope.models.ranks.calls import CallColumns, CallKind, Calls, ranks_in_short
from stepscope.models.ranks.sketch import Sketch, packed_by_step
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
    kernels, kernel_steps = _kernels(job, scale)
    return Sketch(
        rank=rank,
        node=f"node-{rank // RANKS_PER_NODE}",
        device="V100",
        steps=list(range(job.steps)),
        length=_ms(lengths),
        work={name: _ms(values) for name, values in work.items() if values.any()},
        waiting=_ms((run.end - run.start)[rank].sum(axis=1)),
        has_device=True,
        kernels=kernels,
        calls=_calls(job, rank),
        kernel_steps=kernel_steps,
    )


def _kernels(job: Job, scale: np.ndarray) -> tuple[dict[str, tuple[float, float]], bytes]:
    """Counts and medians by name, and the means by step; `scale` has shape (steps, pieces)."""
    times = {
        name[:120]: lengths * scale[:, place]  # steps, calls
        for name, (lengths, place) in job.pieces.kernels.items()
    }
    longest = sorted(times, key=lambda name: -times[name].sum())[:100]
    found = {name: (float(times[name].shape[1]), float(np.median(times[name])) / 1e6) for name in longest}
    means = [times[name].mean(axis=1) for name in longest[:24]]
    return found, packed_by_step(means, [1e6 * found[name][1] for name in longest[:24]])


def _calls(job: Job, rank: int) -> Calls:
    run, calls = job.run, len(job.plan)
    arguments = [job.group_arguments(call, rank) for call in range(calls)]
    kinds = [
        CallKind(
            one["Collective name"].replace("_", ""),
            one["Process Group Name"],
            ranks_in_short(one["Process Group Ranks"])[:60],
            one["Group size"],
        )
        for one in arguments
    ]
    distinct = list(dict.fromkeys(kinds))
    own = np.cumsum(
        np.concatenate([np.zeros((job.steps, 1)), job.factors[rank][:, job.classes] * job.own_ns], axis=1),
        axis=1,
    )
    arrival = own[:, job.pieces.arrival]
    columns = CallColumns(
        *(
            np.broadcast_to(np.asarray(values), (job.steps, calls)).astype(np.int64).ravel()
            for values in (
                [distinct.index(kind) for kind in kinds],
                np.arange(job.steps)[:, None],
                run.start[rank] - run.begin[rank, 0],
                (run.end - run.start)[rank],
                arrival,
                np.maximum(own[:, job.pieces.resumed], arrival),
                [4 * one["In msg nelems"] for one in arguments],
                [4 * one["Out msg nelems"] for one in arguments],
                0,
                0,
            )
        )
    )
    return Calls(distinct, [""], int(run.begin[rank, 0]), own[:, -1].astype(int).tolist(), columns.pack())


def _ms(values: np.ndarray) -> list[float]:
    return np.round(values / 1e6, 4).tolist()
