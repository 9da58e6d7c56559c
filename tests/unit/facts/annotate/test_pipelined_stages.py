"""Generated pipelined schedules of random depth and micro-batches, with known stages.

A rank of a job with `warm_up` forward passes ahead runs 1F1B; with two parts of the model on it,
they alternate (interleaved, DualPipe). The backward pass of a micro-batch may be split into the
gradients of inputs and, later, of weights (zero-bubble). What marks the passes: ranges, sequence
numbers, both, or neither.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.schema import STAGES

LAYERS = ("aten::linear", "aten::layer_norm", "aten::scaled_dot_product_attention")
STYLES = ("attn({})", "PP:0{}{}", "{} {}")
Pass = tuple[str, int]


def schedule(chance: random.Random, zero_bubble: bool) -> list[Pass]:
    """Passes of one rank: `F`, `B` and `W`, each with its micro-batch."""
    count, ahead = chance.randint(2, 8), chance.randint(1, 4)
    passes: list[Pass] = [("F", number) for number in range(min(ahead, count))]
    waiting: list[int] = []
    for number in range(count):
        passes.append(("B", number))
        waiting += [number] * zero_bubble
        if waiting and chance.random() < 0.4:
            passes.append(("W", waiting.pop(0)))
        if number + ahead < count:
            passes.append(("F", number + ahead))
    passes += [("W", number) for number in waiting]
    cut = chance.randint(0, len(passes) // 3)  # the recording may begin or end anywhere
    part = passes[cut : len(passes) - chance.randint(0, 2)] if chance.random() < 0.3 else passes
    return part if any(kind == "F" for kind, _ in part) else passes


class Drawing:
    """Lines of a trace, and the true stage of each operator by name."""

    def __init__(self, chance: random.Random, ranges: str, numbered: bool) -> None:
        self.chance, self.ranges, self.numbered = chance, ranges, numbered
        self.lines: list[str] = []
        self.truth: list[tuple[str, str]] = []
        self.clock, self.number = 10, 0
        self.sequences: dict[int, list[int]] = {}

    def operator(self, track: str, name: str, stage: str, options: str = "") -> None:
        """An operator that launches one kernel."""
        self.number += 1
        at, tag = self.clock, f"corr={self.number}"
        self.lines += [
            f"{track} | {at} {at + 8} | {name} | n={self.number} {options}",
            f"{track} | {at + 2} {at + 6} | cudaLaunchKernel | {tag}",
            f"stream 7 | {at + 7} {at + 14} | kernel_{stage} | {tag}",
        ]
        self.clock += 10

    def range(self, kind: str, batch: int, begin: int) -> None:
        word = {"F": "Forward", "B": "Backward", "W": "Backward"}[kind]
        name = self.ranges.format(word if self.ranges == "{} {}" else kind, batch)
        self.lines.append(f"main | {begin} {self.clock} | {name} | cat=annotation")
        self.clock += self.chance.choice((0, 3))

    def run(self, kind: str, batch: int) -> None:
        begin = self.clock - 1
        (self.forward if kind == "F" else self.backward)(kind, batch)
        if self.ranges:
            self.range(kind, batch, begin)

    def overlapped(self) -> None:
        """Parts of a forward and of a backward pass in turn, as DualPipe runs them."""
        for part in ("attn", "mlp", "combine"):
            for kind in "FBW":
                begin = self.clock - 1
                number = f"seq={1000 + self.number}" if self.numbered and kind == "F" else ""
                stage = "forward" if kind == "F" else "backward"
                self.operator("main", self.chance.choice(LAYERS), stage, number)
                self.lines.append(f"main | {begin} {self.clock} | {part}({kind}) | cat=annotation")
                self.clock += self.chance.choice((0, 3))

    def forward(self, kind: str, batch: int) -> None:
        numbers = []
        for _ in range(self.chance.randint(1, 4)):
            numbers.append(1000 + self.number)
            sequence = f"seq={numbers[-1]}" if self.numbered else ""
            self.operator("main", self.chance.choice(LAYERS), "forward", sequence)
        self.sequences[batch] = numbers

    def backward(self, kind: str, batch: int) -> None:
        if self.ranges and kind == "W":
            self.operator("main", "aten::mm", "backward")
            return
        for number in reversed(self.sequences.get(batch, [999])):
            mark = f"seq={number} fwd=1" if self.numbered and kind == "B" else ""
            name = "autograd::engine::evaluate_function: AddmmBackward0"
            self.operator("autograd", name, "backward", mark)


def drawing(seed: int, style: str, numbered: bool) -> Drawing:
    chance = random.Random(seed)
    result = Drawing(chance, style, numbered)
    for kind, batch in schedule(chance, zero_bubble=chance.random() < 0.5):
        if style == STYLES[0] and kind == "B" and chance.random() < 0.3:
            result.overlapped()
        else:
            result.run(kind, batch)
    if chance.random() < 0.5:
        begin = result.clock
        result.operator("main", "aten::_foreach_add_", "optimizer")
        result.lines.append(f"main | {begin - 1} {result.clock} | Optimizer.step#SGD.step")
        result.clock += 2
    result.lines.append(f"main | 0 {result.clock} | ProfilerStep#1")
    return result


def wrong(result: Drawing) -> Iterator[str]:
    """Kernels whose stage is not the one in their name."""
    events = annotate(drawn_trace("\n".join(result.lines))).events
    for name, stage in zip(events.text("name"), events["stage"].tolist(), strict=True):
        if name and name.startswith("kernel_") and name != f"kernel_{STAGES[stage]}":
            yield f"{name} is {STAGES[stage]}"


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("numbered", [True, False], ids=["sequence numbers", "no numbers"])
@pytest.mark.parametrize("style", [*STYLES, ""])
def test_generated_schedules(style: str, numbered: bool, seed: int) -> None:
    assert [*wrong(drawing(seed, style, numbered))] == []


def test_kernels_without_a_launch_have_the_stage_of_the_range_around_them_on_the_device() -> None:
    trace = annotate(
        drawn_trace("""
        main     |  0 90 | ProfilerStep#1
        main     |  5  9 | aten::linear
        stream 7 | 10 30 | attn(F) | cat=annotation
        stream 7 | 12 20 | kernel_forward
        stream 7 | 32 60 | mlp(W)  | cat=annotation
        stream 7 | 34 50 | kernel_backward
    """)
    )
    kernels = trace.events.text("category").mask("kernel")
    assert [STAGES[stage] for stage in trace.events["stage"][kernels]] == ["forward", "backward"]


def test_a_range_around_both_passes_is_neither() -> None:
    result = Drawing(random.Random(0), "{} {}", False)
    result.run("F", 0)
    result.run("B", 0)
    result.lines.append(f"main | 5 {result.clock} | forward_backward_pipelining | cat=annotation")
    assert not [*wrong(result)]
