"""Generates jobs of data-parallel by pipeline ranks whose step time is known by construction.

Each pipeline runs 1F1B: forward passes of micro-batches are received from the previous stage and
sent to the next, gradients go the other way; then the workers of a stage all-reduce, and update
their weights. Compute, sends, receives and all-reduces have streams of their own, ordered by events
as PyTorch does it. A transfer begins when both sides have arrived.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMPUTE, RECV_FORWARD, SEND_FORWARD, RECV_BACKWARD, SEND_BACKWARD, REDUCE = 7, 20, 21, 22, 23, 30
_CALL_US, _SYNC_US = 1.0, 10.0


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
    """

    rank: int
    stream: int
    name: str
    length_us: float
    after: list[Op] = field(default_factory=list)
    peers: list[Op] = field(default_factory=list)
    arguments: dict[str, Any] = field(default_factory=dict)
    start_us: float = 0.0
    end_us: float = 0.0


@dataclass
class Job:
    """A job of `replicas` pipelines of `stages` ranks each; rank = replica * stages + stage.

    Attributes:
        compute_us: time of a forward pass, given rank and micro-batch; backward takes twice that.
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
                    ranks[rank], number, begins[number][rank], begins[number + 1][rank]
                )
            ]
            trace = {
                "traceEvents": events,
                "distributedInfo": {"rank": rank, "world_size": self.replicas * self.stages},
                "baseTimeNanoseconds": 0,
                "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
            }  # fmt: skip
            Path(folder, f"rank{rank}.json").write_text(json.dumps(trace))
        return folder

    def _step(self) -> list[list[Op]]:
        ranks: list[list[Op]] = [[] for _ in range(self.replicas * self.stages)]
        sends: dict[tuple[int, int, str, int], Op] = {}
        receives: dict[tuple[int, int, str, int], Op] = {}
        for rank, ops in enumerate(ranks):
            for way, batch in _one_forward_one_backward(rank % self.stages, self.stages,
                                                        self.batches):  # fmt: skip
                self._pass(rank, ops, way, batch, sends, receives)
        for key, send in sends.items():
            send.peers, receives[key].peers = [receives[key]], [send]
        for stage in range(self.stages):
            self._update(ranks, stage)
        return ranks

    def _pass(self, rank: int, ops: list[Op], way: str, batch: int, sends: Any, receives: Any,
              ) -> None:  # fmt: skip
        """Receive, compute and send one micro-batch in one direction."""
        stage, forward = rank % self.stages, way == "forward"
        before, after = (rank - 1, rank + 1) if forward else (rank + 1, rank - 1)
        inside = range(rank - stage, rank - stage + self.stages)
        streams = (RECV_FORWARD, SEND_FORWARD) if forward else (RECV_BACKWARD, SEND_BACKWARD)
        received: list[Op] = []
        if before in inside:
            key = before, rank, way, batch
            receives[key] = _transfer(rank, streams[0], "recv", self.transfer_us(before, rank),
                                      before, _last(ops))  # fmt: skip
            ops.append(receives[key])
            received = [receives[key]]
        count = self.kernels(stage)
        length = self.compute_us(rank, batch) * (1 if forward else 2)
        for kernel in range(count):
            ops.append(Op(rank, COMPUTE, f"{way}_gemm_{kernel}", length / count, received))
            received = []
        if after in inside:
            key = rank, after, way, batch
            sends[key] = _transfer(rank, streams[1], "send", self.transfer_us(rank, after), after,
                                   _last(ops))  # fmt: skip
            ops.append(sends[key])

    def _update(self, ranks: list[list[Op]], stage: int) -> None:
        members = list(range(stage, len(ranks), self.stages))
        arguments = {
            "Collective name": "allreduce", "Process Group Name": str(stage + 1),
            "Process Group Ranks": str(members), "Group size": len(members),
        }  # fmt: skip
        reduces = [
            Op(rank, REDUCE, "ncclDevKernel_AllReduce_Sum_f32_RING_LL", self.reduce_us,
               _last(ranks[rank]), arguments=arguments) for rank in members
        ]  # fmt: skip
        for reduce in reduces:
            reduce.peers = [one for one in reduces if one is not reduce]
            ranks[reduce.rank] += [reduce, Op(reduce.rank, COMPUTE, "adam", 50.0, [reduce])]


def _one_forward_one_backward(stage: int, stages: int, batches: int) -> Iterator[tuple[str, int]]:
    warmup = min(stages - stage - 1, batches)
    yield from (("forward", batch) for batch in range(warmup))
    for batch in range(batches - warmup):
        yield "forward", batch + warmup
        yield "backward", batch
    yield from (("backward", batch) for batch in range(batches - warmup, batches))


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


def _events(ops: list[Op], step: int, begin: float, end: float) -> Iterator[dict[str, Any]]:
    def event(category: str, name: str, thread: int, start: float, length: float, **arguments: Any):
        return {"ph": "X", "cat": category, "name": name, "pid": 0 if thread < 100 else 1000,
                "tid": thread, "ts": start, "dur": length, "args": arguments}  # fmt: skip

    def place(stream: int) -> dict[str, int]:
        return {"device": 0, "stream": stream}

    yield event("user_annotation", f"ProfilerStep#{step}", 1000, begin, end - begin)
    first = 100_000 * (step + 1)
    number = {id(op): first + 10 * row for row, op in enumerate(ops)}
    for row, op in enumerate(ops):
        corr, at = number[id(op)], begin + 20.0 + 2 * row * _CALL_US
        for other in op.after:
            yield event("cuda_runtime", "cudaStreamWaitEvent", 1000, at - 1.5, 0.5,
                        correlation=corr + 1)  # fmt: skip
            yield event("cuda_sync", "Stream Wait Event", op.stream, at - 1.5, 0.5,
                        correlation=corr + 1, wait_on_stream=other.stream,
                        **place(op.stream))  # fmt: skip
        yield event("cuda_runtime", "cudaLaunchKernel", 1000, at, _CALL_US, correlation=corr)
        yield event("kernel", op.name, op.stream, op.start_us, op.end_us - op.start_us,
                    correlation=corr, **place(op.stream), **op.arguments)  # fmt: skip
    launched = begin + 22.0 + 2 * len(ops) * _CALL_US
    waited = end - launched - _SYNC_US / 2
    yield event("cuda_runtime", "cudaDeviceSynchronize", 1000, launched, waited,
                correlation=first + 99_999)  # fmt: skip
