"""BlueConnect (Cho et al., MLSys 2019) in a communication hook of DistributedDataParallel.

A bucket is reduce-scattered within each group of the first level, then what a worker holds of it
within its group of the next level, and so on; then it is gathered on the way back.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod

from benchmarks.networked.rings import all_gather, reduce_scatter
from torch import Tensor, distributed
from torch.distributed import ProcessGroup
from torch.futures import Future


def level_groups(factors: Sequence[int], level: int) -> list[list[int]]:
    """The ranks of each group of a level.

    Args:
        factors: members of a group at each level, from inside a node outwards.
        level: which of them.

    Example:
        >>> level_groups([2, 2], 0), level_groups([2, 2], 1)
        ([[0, 1], [2, 3]], [[0, 2], [1, 3]])
    """
    stride, width = prod(factors[:level]), prod(factors[: level + 1])
    starts = [rank for rank in range(prod(factors)) if rank % width < stride]
    return [[start + stride * n for n in range(factors[level])] for start in starts]


@dataclass
class _Level:
    """A worker's groups of one level: one per direction, since both run at the same time."""

    up: ProcessGroup
    down: ProcessGroup


class BlueConnect:
    """Averages buckets as a communication hook of `DistributedDataParallel`.

    Each phase of each level has a thread, so that phases of several buckets overlap.

    Args:
        factors: members of a group at each level; their product is the number of workers.
    """

    def __init__(self, factors: Sequence[int]) -> None:
        self._levels = [
            _Level(_own_group(factors, level), _own_group(factors, level)) for level in range(len(factors))
        ]
        self._threads = [ThreadPoolExecutor(1) for _ in range(2 * len(factors))]

    def average(self, bucket: distributed.GradBucket) -> Future[Tensor]:
        """A future of the bucket's average over all workers."""
        return self._sum(bucket.buffer().div_(distributed.get_world_size()), bucket.index())

    def run(self, values: Tensor) -> None:
        """Sum values over all workers, in place, and wait for it."""
        self._sum(values, 0).wait()

    def close(self) -> None:
        """End the threads."""
        for thread in self._threads:
            thread.shutdown()

    def _sum(self, buffer: Tensor, tag: int) -> Future[Tensor]:
        done: Future[Tensor] = Future()
        self._run(_Pass(buffer, done, tag, self._levels), 0)
        return done

    def _run(self, one: _Pass, phase: int) -> None:
        """Queue a phase, which queues the one after it when it has ended."""

        def work() -> None:
            try:
                one.run(phase)
            except BaseException as error:
                one.done.set_exception(error)
                return
            if phase + 1 < len(self._threads):
                self._run(one, phase + 1)
            else:
                one.done.set_result(one.buffer)

        self._threads[phase].submit(work)


class _Pass:
    """One bucket on its way up the levels and down again."""

    def __init__(self, buffer: Tensor, done: Future[Tensor], tag: int, levels: Sequence[_Level]) -> None:
        self.buffer, self.done = buffer, done
        self._tag, self._levels = tag, levels
        self._held = buffer
        self._chunks: list[Sequence[Tensor]] = []

    def run(self, phase: int) -> None:
        if phase < len(self._levels):
            group = self._levels[phase].up
            self._chunks.append(self._held.tensor_split(distributed.get_world_size(group)))
            self._held = reduce_scatter(self._chunks[-1], group, self._tag)
        else:
            level = 2 * len(self._levels) - 1 - phase
            all_gather(self._chunks[level], self._levels[level].down, self._tag)


def _own_group(factors: Sequence[int], level: int) -> ProcessGroup:
    """New groups of a level; returns that of this worker."""
    own, _ = distributed.new_subgroups_by_enumeration(level_groups(factors, level))
    return own
