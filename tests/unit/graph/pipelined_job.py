"""Generates jobs of data-parallel by pipeline ranks whose step time is known by construction.

Each pipeline runs 1F1B, interleaved 1F1B, or a zero-bubble schedule: forward passes of
micro-batches are received from the previous stage and sent to the next, gradients go the other way;
then the workers of a stage all-reduce, and update their weights. Compute, sends, receives and
all-reduces have streams of their own, ordered by events as PyTorch does it. A transfer begins when
both sides have arrived.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

COMPUTE, RECV_FORWARD, SEND_FORWARD, RECV_BACKWARD, SEND_BACKWARD, REDUCE = 7, 20, 21, 22, 23, 30
_CALL_US, _SYNC_US = 1.0, 10.0


class Pass(NamedTuple):
    """One micro-batch through one chunk: `forward`, `backward`, or gradients of `weights` alone."""

    way: str
    batch: int
    chunk: int = 0


_NEUTRAL = {"forward": "tn", "backward": "nt", "weights": "nn"}  # how kernels name their layouts
_STREAMS = {"forward": (RECV_FORWARD, SEND_FORWARD), "backward": (RECV_BACKWARD, SEND_BACKWARD)}


@dataclass
class Op:
    """One piece of device work.

    Attributes:
        rank, stream: where it runs.
        name: of the kernel.
        length_us: of the computation, or of the transfer once all have arrived.
        after: work that it waits for, on other streams.
        peers: the other sides of a transfer.
        arguments: of the event.
        number: the pass that it computes.
    """

    rank: int
    stream: int
    name: str
    length_us: float
    after: list[Op] = field(default_factory=list)
    peers: list[Op] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    number: Pass | None = None
    start_us: float = 0.0
    end_us: float = 0.0


@dataclass
class Job:
    """A job of `replicas` pipelines of `stages` ranks each; rank = replica * stages + stage.

    Attributes:
        compute_us: time of a forward pass, given rank and micro-batch; backward takes twice that,
            half of it for the gradients of the weights.
        chunks: parts of the model on each rank, of neighboring ranks in turn; of several, passes
            are interleaved as Megatron does it, and there are a multiple of `stages` batches.
        zero_bubble: the gradients of the weights are computed later, where a rank would idle.
        evidence: what shows the passes: the `names` of kernels, `ranges`, or nothing (`none`).
        transfer_us: time of a send, given both ranks.
        kernels: kernels per pass, given the stage.
    """

    replicas: int = 4
    stages: int = 4
    batches: int = 8
    steps: int = 2
    compute_us: Callable[[int, int], float] = lambda rank, batch: 1000.0
    transfer_us: Callable[[int, int], float] = lambda source, target: 100.0
    kernels: Callable[[int], int] = lambda stage: 2
    reduce_us: float = 500.0
    chunks: int = 1
    zero_bubble: bool = False
    evidence: str = "names"

    def run(self) -> tuple[list[list[list[Op]]], list[list[float]]]:
        """The work of each step and rank in the order of its launches, and when steps begin, us."""
        begins, steps = [[0.0] * self.replicas * self.stages], []
        for _ in range(self.steps):
            ranks = self._step()
            _schedule(ranks, begins[-1])
            steps.append(ranks)
            begins.append([max(op.end_us for op in ops) + _SYNC_US for ops in ranks])
        return steps, begins

    @property
    def step_us(self) -> float:
        """The mean length of a step by construction, us; the last ends with its device work."""
        begins = self.run()[1]
        each = [last - _SYNC_US - first for first, last in zip(begins[0], begins[-1], strict=True)]
        return sum(each) / len(each) / self.steps

    def write(self, folder: Path) -> Path:
        """Write a Kineto trace for each rank."""
        steps, begins = self.run()
        folder.mkdir(exist_ok=True)
        for rank in range(self.replicas * self.stages):
            events = [
                event
                for number, ranks in enumerate(steps)
                for event in _events(
                    ranks[rank],
                    number,
                    begins[number][rank],
                    begins[number + 1][rank],
                    self.evidence == "ranges",
                )
            ]
            trace = {
                "traceEvents": events,
                "distributedInfo": {"rank": rank, "world_size": self.replicas * self.stages},
                "baseTimeNanoseconds": 0,
                "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            }
            Path(folder, f"rank{rank}.json").write_text(json.dumps(trace))
        return folder

    def _step(self) -> list[list[Op]]:
        ranks: list[list[Op]] = [[] for _ in range(self.replicas * self.stages)]
        transfers: dict[tuple[int, int, Pass], list[Op]] = {}
        for rank, ops in enumerate(ranks):
            for one in self._passes(rank % self.stages):
                self._pass(rank, ops, one, transfers)
        for ends in transfers.values():
            for one, other in (ends, ends[::-1]):
                one.peers = [other]
        for stage in range(self.stages):
            self._update(ranks, stage)
        return ranks

    def _passes(self, stage: int) -> Iterator[Pass]:
        if self.zero_bubble:
            return _zero_bubble(stage, self.stages, self.batches)
        return _one_forward_one_backward(stage, self.stages, self.batches, self.chunks)

    def _pass(
        self, rank: int, ops: list[Op], one: Pass, transfers: dict[tuple[int, int, Pass], list[Op]]
    ) -> None:
        """Receive, compute and send one micro-batch in one direction."""
        streams = _STREAMS.get(one.way)
        received: list[Op] = []
        before, after = self._neighbors(rank, one)
        if streams and before is not None:
            received = [
                _transfer(rank, streams[0], "recv", self.transfer_us(before[0], rank), before[0], _last(ops))
            ]
            transfers.setdefault((before[0], rank, before[1]), []).extend(received)
            ops.extend(received)
        count = self.kernels(rank % self.stages)
        length = self.compute_us(rank, one.batch) * self._factor(one.way) / self.chunks
        for kernel in range(count):
            name = f"{_NEUTRAL.get(one.way) if self.evidence != 'names' else one.way}_gemm_{kernel}"
            ops.append(Op(rank, COMPUTE, name, length / count, received, number=one))
            received = []
        if streams and after is not None:
            send = _transfer(rank, streams[1], "send", self.transfer_us(rank, after[0]), after[0], _last(ops))
            transfers.setdefault((rank, after[0], one), []).append(send)
            ops.append(send)

    def _factor(self, way: str) -> int:
        return 2 if way == "backward" and not self.zero_bubble else 1

    def _neighbors(self, rank: int, one: Pass) -> tuple[tuple[int, Pass] | None, tuple[int, Pass] | None]:
        """The rank that a pass receives from, with the pass that sends, and the one it sends to."""
        place = one.chunk * self.stages + rank % self.stages
        first = rank - rank % self.stages
        by = 1 if one.way == "forward" else -1

        def at(place: int) -> tuple[int, Pass] | None:
            if not 0 <= place < self.chunks * self.stages:
                return None
            chunk, stage = divmod(place, self.stages)
            return first + stage, one._replace(chunk=chunk)

        return at(place - by), at(place + by)

    def _update(self, ranks: list[list[Op]], stage: int) -> None:
        members = list(range(stage, len(ranks), self.stages))
        arguments = {
            "Collective name": "allreduce",
            "Process Group Name": str(stage + 1),
            "Process Group Ranks": str(members),
            "Group size": len(members),
        }
        reduces = [
            Op(
                rank,
                REDUCE,
                "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
                self.reduce_us,
                _last(ranks[rank]),
                arguments=arguments,
            )
            for rank in members
        ]
        for reduce in reduces:
            reduce.peers = [one for one in reduces if one is not reduce]
            ranks[reduce.rank] += [reduce, Op(reduce.rank, COMPUTE, "adam", 50.0, [reduce])]


def _one_forward_one_backward(stage: int, stages: int, batches: int, chunks: int) -> Iterator[Pass]:
    """The passes of a stage in order; of several chunks, those of `stages` batches take turns."""
    groups = range(0, batches * chunks, stages * chunks) if chunks > 1 else range(batches)
    each = stages if chunks > 1 else 1
    order = [
        (chunk, group // chunks + batch)
        for group in groups
        for chunk in range(chunks)
        for batch in range(each)
    ]
    forward = [Pass("forward", batch, chunk) for chunk, batch in order]
    backward = [Pass("backward", batch, chunks - 1 - chunk) for chunk, batch in order]
    ahead = (stages - stage - 1) * min(chunks, 2) + (chunks - 1) * stages
    yield from _alternating(forward, backward, min(ahead, len(forward)))


def _zero_bubble(stage: int, stages: int, batches: int) -> Iterator[Pass]:
    """1F1B in which a stage computes the gradients of weights so many batches later (ZB-H1)."""
    waiting: list[Pass] = []
    for one in _one_forward_one_backward(stage, stages, batches, 1):
        yield one
        if one.way == "backward":
            waiting.append(one._replace(way="weights"))
        if len(waiting) > stage:
            yield waiting.pop(0)
    yield from waiting


def _alternating(forward: list[Pass], backward: list[Pass], ahead: int) -> Iterator[Pass]:
    """Some forward passes ahead, then in turn, then the rest of the backward passes."""
    yield from forward[:ahead]
    for one, other in zip(forward[ahead:], backward, strict=False):
        yield one
        yield other
    yield from backward[len(forward) - ahead :]


def _last(ops: list[Op]) -> list[Op]:
    """The last computation so far, for which a transfer's stream waits."""
    return [op for op in ops if op.stream == COMPUTE][-1:]


def _transfer(rank: int, stream: int, kind: str, length: float, peer: int, after: list[Op]) -> Op:
    side = "Dst Rank" if kind == "send" else "Src Rank"
    arguments = {"Collective name": kind, "Process Group Name": "0", "Group size": 16, side: peer}
    return Op(rank, stream, "ncclDevKernel_SendRecv", length, after, arguments=arguments)


def _schedule(ranks: list[list[Op]], begin_us: list[float]) -> None:
    """Start all work as soon as its launch, its stream, its events and its peers allow."""
    for ops in ranks:
        for op in ops:
            op.start_us, op.end_us = 0.0, 0.0
    changed = True
    while changed:
        changed = False
        for rank, ops in enumerate(ranks):
            free: dict[int, float] = {}
            for place, op in enumerate(ops):
                ready = [begin_us[rank] + 25.0 + 2 * place * _CALL_US, free.get(op.stream, 0.0)]
                start = max(ready + [other.end_us for other in op.after])
                end = max([start, *(peer.start_us for peer in op.peers)]) + op.length_us
                changed |= (start, end) != (op.start_us, op.end_us)
                op.start_us, op.end_us = start, end
                free[op.stream] = end


def _events(ops: list[Op], step: int, begin: float, end: float, ranges: bool) -> Iterator[dict[str, Any]]:
    def event(category: str, name: str, thread: int, start: float, length: float, **arguments: Any):
        return {
            "ph": "X",
            "cat": category,
            "name": name,
            "pid": 0 if thread < 100 else 1000,
            "tid": thread,
            "ts": start,
            "dur": length,
            "args": arguments,
        }

    def place(stream: int) -> dict[str, int]:
        return {"device": 0, "stream": stream}

    yield event("user_annotation", f"ProfilerStep#{step}", 1000, begin, end - begin)
    first = 100_000 * (step + 1)
    number = {id(op): first + 10 * row for row, op in enumerate(ops)}
    for row, op in enumerate(ops):
        corr, at = number[id(op)], begin + 20.0 + 2 * row * _CALL_US
        for other in op.after:
            yield event("cuda_runtime", "cudaStreamWaitEvent", 1000, at - 1.5, 0.5, correlation=corr + 1)
            yield event(
                "cuda_sync",
                "Stream Wait Event",
                op.stream,
                at - 1.5,
                0.5,
                correlation=corr + 1,
                wait_on_stream=other.stream,
                **place(op.stream),
            )
        yield event("cuda_runtime", "cudaLaunchKernel", 1000, at, _CALL_US, correlation=corr)
        if ranges and op.number:
            way = "forward" if op.number.way == "forward" else "backward"
            yield event("user_annotation", way, 1000, at - 0.2, _CALL_US + 0.4)
        yield event(
            "kernel",
            op.name,
            op.stream,
            op.start_us,
            op.end_us - op.start_us,
            correlation=corr,
            **place(op.stream),
            **op.arguments,
        )
    launched = begin + 22.0 + 2 * len(ops) * _CALL_US
    waited = end - launched - _SYNC_US / 2
    yield event("cuda_runtime", "cudaDeviceSynchronize", 1000, launched, waited, correlation=first + 99_999)
