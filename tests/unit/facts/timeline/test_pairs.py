"""Two steps paired by structure, and short pieces merged."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import NamedTuple

import numpy as np
import pytest
from tiers import family

from stepscope.facts.annotate import annotate
from stepscope.facts.timeline.pairs import RecordedStep, merge_short, pair_steps
from stepscope.testing import drawn_trace


class Kernel(NamedTuple):
    """What does the same in both runs has the same identity."""

    identity: str
    name: str
    us: int


Operator = tuple[str, list[Kernel]]
Layers = list[tuple[str, list[Operator]]]


def model(random: Random, layers: int) -> Layers:
    """Layers of a few operators each, which launch one to three kernels."""

    def operator(place: str) -> Operator:
        name = random.choice(("mm", "softmax", "add", "copy_"))
        parts = range(random.randrange(1, 4))
        kernels = [
            Kernel(f"{place}.{part}", f"k{part}_{random.randrange(2)}", random.randrange(5, 60))
            for part in parts
        ]
        return f"aten::{name}", kernels

    return [
        (f"Block_{layer}", [operator(f"{layer}.{call}") for call in range(random.randrange(2, 6))])
        for layer in range(layers)
    ]


def fused(layers: Layers, random: Random) -> Layers:
    """The kernels of the first operator in each third layer become one."""
    return [
        (name, [(ops[0][0], ops[0][1][:1]), *ops[1:]] if layer % 3 == 0 else ops)
        for layer, (name, ops) in enumerate(layers)
    ]


def with_an_operator(layers: Layers, random: Random) -> Layers:
    """One layer calls a further operator."""
    at = random.randrange(len(layers))
    added: Operator = ("aten::dropout", [Kernel("added", "dropout", 20)])
    return [(name, [added, *ops] if layer == at else ops) for layer, (name, ops) in enumerate(layers)]


def without_a_layer(layers: Layers, random: Random) -> Layers:
    """A layer is gone, and the others keep their names."""
    at = random.randrange(len(layers))
    return layers[:at] + layers[at + 1 :]


def other_batch_size(layers: Layers, random: Random) -> Layers:
    return _kernels(layers, lambda kernel: kernel._replace(us=kernel.us * 2 + random.randrange(9)))


def other_precision(layers: Layers, random: Random) -> Layers:
    """All kernels have other names."""
    return _kernels(layers, lambda kernel: kernel._replace(name=f"half_{kernel.name}", us=kernel.us // 2 + 1))


def _kernels(layers: Layers, change: Callable[[Kernel], Kernel]) -> Layers:
    return [(name, [(op, [change(one) for one in kernels]) for op, kernels in ops]) for name, ops in layers]


def recorded(layers: Layers) -> tuple[RecordedStep, list[str]]:
    """A step of a model, and the identity of each kernel in order of time."""
    lines, identities, now, device, corr = [], list[str](), 10, 20, 0
    for name, operators in layers:
        begin = now
        for operator, kernels in operators:
            start = now = now + 1
            for kernel in kernels:
                corr += 1
                lines.append(f"main | {now + 1} {now + 2} | cudaLaunchKernel | corr={corr}")
                device = max(device, now + 3)
                lines.append(f"stream 7 | {device} {device + kernel.us} | {kernel.name} | corr={corr}")
                identities.append(kernel.identity)
                now, device = now + 3, device + kernel.us
            now += 1
            lines.append(f"main | {start} {now} | {operator}")
        now += 1
        lines.append(f"main | {begin} {now} | nn.Module: {name}")
    end = max(now, device) + 5
    lines += [f"main | 0 {end} | ProfilerStep#0", f"main | 5 {end - 1} | ## forward ##"]
    trace = annotate(drawn_trace("\n".join(lines)))
    return RecordedStep(trace, 0, 0, 0, end * 1000, end), identities


EDITS = (fused, with_an_operator, without_a_layer, other_batch_size, other_precision)


@pytest.mark.parametrize("seeds", family([range(4), range(4, 10)], 1), ids=str)
@pytest.mark.parametrize("edit", EDITS)
def test_generated_runs_are_paired_as_they_were_edited(
    edit: Callable[[Layers, Random], Layers], seeds: range
) -> None:
    """10 pairs of each edit; at least 98 % of the time has its true partner, or none where that is true."""
    right = total = 0.0
    for seed in seeds:
        random = Random(seed)
        layers = model(random, 4 + seed % 5)
        sides = recorded(layers), recorded(edit(layers, random))
        _, *drawn = pair_steps(sides[0][0], sides[1][0], 1 << 20)
        known = {identity: at for at, identity in enumerate(sides[0][1])}
        rows = [[at for at, kind in enumerate(side.kind) if kind == "work"] for side in drawn]
        for at, identity in zip(rows[1], sides[1][1], strict=True):
            truth = rows[0][known[identity]] if identity in known else -1
            total += drawn[1].duration_us[at]
            right += drawn[1].duration_us[at] * (drawn[1].partner[at] == truth)
    assert right / total >= 0.98


def test_modules_that_only_one_run_has_are_paired_by_their_operators() -> None:
    """As when the model is wrapped, so that all of its modules have other paths."""
    layers = model(Random(1), 3)
    wrapped = [(f"Wrapped{name}", operators) for name, operators in layers]
    _, _, after = pair_steps(recorded(layers)[0], recorded(wrapped)[0], 1 << 20)
    work = [partner for kind, partner in zip(after.kind, after.partner, strict=True) if kind == "work"]
    assert work == sorted(work)
    assert min(work) >= 0


START = 10 * np.array([n for n in range(90) if not 50 < n < 70])
END = START + np.where(START == 500, 200, 4)


@pytest.mark.parametrize("most", [60, 20, 5])
def test_short_pieces_are_merged_until_there_are_few_enough(most: int) -> None:
    first = merge_short(np.zeros(len(START), np.int64), START, END, most)
    assert len(first) <= most
    assert first[0] == 0
    assert (np.diff(first) > 0).all()


def test_a_long_piece_stays_on_its_own() -> None:
    first = merge_short(np.zeros(len(START), np.int64), START, END, 20).tolist()
    assert {50, 51} <= set(first)


def test_every_label_keeps_a_piece() -> None:
    label = np.array([0, 0, 1, 1])
    assert merge_short(label, np.array([0, 5, 0, 5]), np.array([4, 9, 4, 9]), 1).tolist() == [0, 2]


def test_kernels_of_another_compiler_are_paired_by_their_kind() -> None:
    """As in a run whose model was compiled: one operator launches all, by kernels of other names."""
    eager = [
        (
            "",
            [
                ("aten::mm", [Kernel("a", "ampere_sgemm_128x64", 9)]),
                ("aten::sum", [Kernel("b", "reduce_kernel", 5)]),
            ],
        )
    ]
    compiled = [("", [("CompiledFunction", [Kernel("a", "volta_sgemm_32x128", 20), Kernel("c", "odd", 3)])])]
    _, _, after = pair_steps(recorded(eager)[0], recorded(compiled)[0], 1 << 20)
    work = [partner >= 0 for kind, partner in zip(after.kind, after.partner, strict=True) if kind == "work"]
    assert work == [True, False]
