"""A job of many ranks that all run one recorded step, again and again, and wait for each other."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from generated_jobs.faults import RANKS_PER_NODE, Fault, as_drawn
from generated_jobs.template import Pieces, Template
from stepscope.base.arrays import Floats, Ids, Mask, Times

_CLASSES = ("busy", "host", "loading", "expert", "other")
_WITHIN, _BETWEEN = 100.0, 10.0  # bus bandwidth within and between machines, bytes per ns
_LATENCY_NS = 8_000
_PLANS = {  # for each call: kind, members, bytes
    "dlrm": [
        ("all_to_all", "node", 32 << 20),
        ("all_to_all", "node", 1 << 14),
        ("all_to_all", "node", 1 << 16),
        ("all_to_all", "node", 1 << 18),
        ("allreduce", "pair", 8 << 20),
        ("all_to_all", "node", 32 << 20),
        ("allreduce", "world", 1 << 12),
        ("allreduce", "world", 1 << 20),
    ],
    "ddp": [
        ("broadcast", "world", 19200),
        ("broadcast", "world", 160),
        ("allreduce", "pair", 5746640),
        ("allreduce", "world", 17632384),
    ],
}
_EXPERT = {"dlrm": (4, 5)}  # the busy time between these calls depends on the tokens of an expert


@dataclass(frozen=True)
class Run:
    """When everything happened, ns since the job began.

    Attributes:
        begin: of each step, shape (ranks, steps + 1).
        start, end: of each call, shape (ranks, steps, calls).
        waited: how long each rank waits for each call, shape (ranks, steps, calls).
    """

    begin: Floats
    start: Floats
    end: Floats
    waited: Floats


@dataclass(frozen=True)
class Job:
    """Many ranks, eight on each machine.

    Attributes:
        name: of the template, `dlrm` or `ddp`.
        template: the step that all ranks run.
        ranks, steps: how many.
        faults: what is planted.
        noise: relative spread of computing and of the CPU's work, from step to step.
        seed: of the noise.
    """

    name: str
    template: Template
    ranks: int
    steps: int
    faults: tuple[Fault, ...] = ()
    noise: float = 0.01
    seed: int = 0

    @property
    def pieces(self) -> Pieces:
        """What the template's step consists of."""
        return self.template.pieces

    @property
    def plan(self) -> list[tuple[str, str, int]]:
        """Kind, members and bytes of each call."""
        return _PLANS[self.name]

    @cached_property
    def classes(self) -> Ids:
        """What each piece depends on, index into the columns of `factors`."""
        pieces = self.pieces
        found = np.full(len(pieces.busy), _CLASSES.index("other"))
        for name, mask in (("busy", pieces.busy), ("host", pieces.host), ("loading", pieces.loading)):
            found[mask] = _CLASSES.index(name)
        if self.name in _EXPERT:
            first, last = _EXPERT[self.name]
            place = np.arange(len(found))
            inside = (place >= pieces.arrival[first]) & (place < pieces.arrival[last])
            found[inside & pieces.busy] = _CLASSES.index("expert")
        return found

    @cached_property
    def factors(self) -> Floats:
        """How much longer pieces take than in the template, shape (ranks, steps, classes)."""
        dice = np.random.default_rng(self.seed)
        shape = (self.ranks, self.steps, len(_CLASSES))
        result = np.maximum(dice.normal(1, self.noise, shape), 0.5)
        result *= np.maximum(dice.normal(1, self.noise / 3, (self.ranks, 1, len(_CLASSES))), 0.5)
        result[..., _CLASSES.index("expert")] = result[..., _CLASSES.index("busy")]
        result[..., _CLASSES.index("other")] = 1
        self._plant(result)
        return result

    def fault(self, kind: str) -> Fault | None:
        """The fault of a kind, if it is planted."""
        return next((one for one in self.faults if one.kind == kind), None)

    def _plant(self, factors: Floats) -> None:
        for fault in self.faults:
            for name in fault.work:
                factors[:, :, _CLASSES.index(name)] *= self._factor(fault)

    @cached_property
    def planted(self) -> tuple[Fault, ...]:
        """The faults as they came out: where steps are drawn, those of this job."""
        return tuple(
            as_drawn(one, self._concerned(one)) if one.each or one.period else one for one in self.faults
        )

    def _concerned(self, fault: Fault) -> Mask:
        """Which ranks are slow in which steps, shape (ranks, steps)."""
        first, last = fault.span(self.steps)
        step = np.arange(self.steps)
        inside = (step >= first) & (step <= last)
        if fault.period:
            inside &= (step - first) % fault.period == 0
        concerned = np.zeros((self.ranks, self.steps), np.bool_)
        concerned[list(fault.ranks)] = inside
        if fault.each:
            dice = np.random.default_rng(self.seed + 1000)
            drawn = dice.random(concerned.shape)
            concerned &= (drawn[:1] if fault.together else drawn) < fault.each
        return concerned

    def _factor(self, fault: Fault) -> Floats:
        """How much longer a fault makes the work that it concerns, shape (ranks, steps)."""
        first, last = fault.span(self.steps)
        step, concerned = np.arange(self.steps), self._concerned(fault)
        rising = fault.ramp or (last - first + 1 if fault.grows else 1)
        grown = np.clip((step - first + 1) / rising, 0, 1)
        return np.where(concerned, 1 + (fault.factor - 1) * grown, 1.0)

    def group(self, call: int) -> Ids:
        """The number of each rank's process group for a call, shape (ranks,)."""
        ranks = np.arange(self.ranks)
        node, local = ranks // RANKS_PER_NODE, ranks % RANKS_PER_NODE
        return {
            "world": np.zeros(self.ranks, np.int64),
            "node": node,
            "pair": (node // 2) * RANKS_PER_NODE + local,
        }[self.plan[call][1]]

    def transfer_ns(self, call: int) -> Floats:
        """How long the transfer of a call takes each rank's group, shape (ranks,)."""
        kind, members, size = self.plan[call]
        group = self.group(call)
        count = np.bincount(group)[group]
        wire = {"all_to_all": (count - 1) / count, "allreduce": 2 * (count - 1) / count}.get(
            kind, np.ones(self.ranks)
        )
        rate = np.full(self.ranks, _WITHIN if members == "node" else _BETWEEN)
        slow = self.fault("slow_link") or self.fault("slow_nic")
        if slow and members == "pair":
            rate[list(slow.ranks)] /= slow.factor
        if slow and slow.kind == "slow_nic" and members == "world":
            rate /= slow.factor  # the ring passes through it, too
        result: Floats = _LATENCY_NS + size * wire / rate
        return result

    @cached_property
    def run(self) -> Run:
        """The job as it ran."""
        calls = len(self.plan)
        begin = np.zeros((self.ranks, self.steps + 1))
        start, end, waited = (np.zeros((self.ranks, self.steps, calls)) for _ in range(3))
        free = np.zeros(self.ranks)
        segments, operations = self._operations()
        clock = np.zeros(self.ranks)
        for step in range(self.steps):
            begin[:, step] = clock
            for segment, (call, arrives) in zip(segments, operations, strict=True):
                clock = clock + self.factors[:, step] @ segment
                if arrives:
                    start[:, step, call] = np.maximum(clock, free)
                    free = end[:, step, call] = self._end(call, start[:, step, call])
                elif call >= 0:
                    waited[:, step, call] = np.maximum(end[:, step, call] - clock, 0)
                    clock = clock + waited[:, step, call]
        begin[:, -1] = clock
        return Run(begin, start, end, waited)

    def _end(self, call: int, start: Floats) -> Floats:
        group = self.group(call)
        last = np.zeros(int(group.max()) + 1)
        np.maximum.at(last, group, start)
        result: Floats = last[group] + self.transfer_ns(call)
        return result

    def _operations(self) -> tuple[list[Floats], list[tuple[int, bool]]]:
        """The template as work by class, each followed by an arrival, a wait, or (-1) the end."""
        pieces, own = self.pieces, self.own_ns
        marks = [(int(edge), 0, call) for call, edge in enumerate(pieces.arrival)]
        marks += [(int(edge), 1, call) for call, edge in enumerate(pieces.resumed)]
        marks = [*sorted(marks), (len(own), 2, -1)]
        segments, operations, before = [], [], 0
        for edge, kind, call in marks:
            span = slice(before, edge)
            work = np.bincount(self.classes[span], own[span], len(_CLASSES))
            segments.append(work.astype(np.float64))
            operations.append((call, kind == 0))
            before = edge
        return segments, operations

    @property
    def own_ns(self) -> Times:
        """The length of each piece without waiting, ns."""
        return np.where(self.pieces.waiting, 0, np.diff(self.pieces.edges))

    def group_arguments(self, call: int, rank: int) -> dict[str, Any]:
        """The arguments of a communication kernel, as NCCL's kernels have them."""
        kind, members, size = self.plan[call]
        group = self.group(call)
        ranks = np.flatnonzero(group == group[rank]).tolist()
        received = size // 4
        expert = self.fault("imbalanced_expert")
        if expert and rank in expert.ranks and self._feeds(call):
            received = int(received * expert.factor)
        return {
            "Collective name": kind,
            "In msg nelems": size // 4,
            "Out msg nelems": received,
            "dtype": "Float",
            "Group size": len(ranks),
            "Process Group Ranks": str(ranks),
            "Process Group Name": f"{members}{group[rank]}",
        }

    def _feeds(self, call: int) -> bool:
        """Whether a call brings the tokens of an expert: all exchanges of the larger kind."""
        return self.plan[call][0] == "all_to_all" and self.plan[call][2] > 1 << 20
