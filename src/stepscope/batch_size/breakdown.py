"""The breakdown of a step: time and memory by module, operator and source line.

From the real iteration, backward included: every nanosecond of the recorded step belongs to one
operator, one module and one line, or is shown as untracked. Recording makes the step longer, so
times are scaled to the length of an unrecorded step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stepscope.annotate import annotate
from stepscope.annotate.attribution import attribute
from stepscope.batch_size.line_costs import line_costs
from stepscope.batch_size.module_tree import module_tree
from stepscope.batch_size.peak_memory import find_footprint, find_memory_owners
from stepscope.batch_size.step_costs import find_costs
from stepscope.ingest import read
from stepscope.trace.trace import Trace

Json = dict[str, Any]


@dataclass(frozen=True)
class StepBreakdown:
    """One step at one batch size.

    Attributes:
        batch: samples in the batch.
        step_ms: the length of an unrecorded step.
        recorded_ms: the step that was recorded, the longest or largest of them.
        peak_bytes: memory at its peak.
        memory: the peak by kind: weights, buffers, gradients, optimizer_state, activations,
            inputs, temporaries, untracked.
        tree: modules and operators, nested; `bytes` is their share of the peak,
            `activations_bytes` what their forward keeps for backward.
        lines: what each source line costs, the most expensive first.
    """

    batch: int
    step_ms: float
    recorded_ms: float
    peak_bytes: int
    memory: Mapping[str, int]
    tree: Json
    lines: Sequence[Json]

    def to_json(self) -> Json:
        """As `stepscope batch --json` has it."""
        return {
            "batch": self.batch,
            "step_ms": self.step_ms,
            "recorded_ms": self.recorded_ms,
            "peak_bytes": self.peak_bytes,
            "memory": dict(self.memory),
            "tree": self.tree,
            "lines": list(self.lines),
        }

    def memory_at(self, batch: int, peak_bytes: int) -> dict[str, int]:
        """The peak at another batch size, by kind: what the model keeps stays, inputs grow with the
        batch, and activations and temporaries share the rest as they do here."""
        result = dict(self.memory)
        grown = ("inputs", "activations", "temporaries")
        result["inputs"] = round(result["inputs"] * batch / self.batch)
        fixed = sum(size for kind, size in result.items() if kind not in grown[1:])
        here = sum(self.memory[kind] for kind in grown[1:]) or 1
        for kind in grown[1:]:
            result[kind] = round(max(0, peak_bytes - fixed) * self.memory[kind] / here)
        return result


def read_breakdown(capture: Path, batch: int, step_ms: float) -> StepBreakdown | None:
    """The breakdown of a capture that a measuring process wrote.

    Args:
        capture: the file; `NAME.storages.json` is next to it.
        batch: the batch size it was made at.
        step_ms: the length of an unrecorded step.

    Returns:
        The breakdown; None if the capture has no complete step.
    """
    storages = json.loads(capture.with_suffix(".storages.json").read_text("utf-8"))
    return break_down(annotate(read(capture)), storages, batch, step_ms)


def break_down(
    trace: Trace, storages: Mapping[str, Sequence[Json]], batch: int, step_ms: float
) -> StepBreakdown | None:
    """The same for an open trace."""
    if not len(trace["steps"]):
        return None
    attribution = attribute(trace)
    footprint = find_footprint(trace, storages, attribution)
    step = footprint.step if footprint else int(trace["steps"]["step"][0])
    recorded_ms = _length_ms(trace, step)
    scale = step_ms / recorded_ms if recorded_ms else 1.0
    costs = find_costs(trace, attribution, step, scale)
    held = find_memory_owners(trace, attribution, footprint.blocks if footprint else ())
    kept = find_memory_owners(trace, attribution, footprint.kept if footprint else ())
    return StepBreakdown(
        batch,
        step_ms,
        recorded_ms,
        footprint.bytes if footprint else 0,
        footprint.split() if footprint else {},
        module_tree(trace, attribution, costs, held, kept, step_ms),
        line_costs(attribution, costs, kept, trace, storages.get("after", ())),
    )


def _length_ms(trace: Trace, step: int) -> float:
    steps = trace["steps"]
    row = int(np.flatnonzero(steps["step"] == step)[0])
    end = max(int(steps["end_ns"][row]), int(steps["device_end_ns"][row]))
    return (end - int(steps["start_ns"][row])) / 1e6
