from __future__ import annotations

import sys
from pathlib import Path

import pytest
from schema_docs import page

from stepscope.base.numbers import STORAGE_KINDS
from stepscope.testing import drawn_trace
from stepscope.trace.analysis_schema import OPERATIONS
from stepscope.trace.declaration import (
    BOUNDS,
    CATEGORIES,
    COMPUTING,
    CONTEXT_KINDS,
    FORWARD_STAGES,
    IDLE_CAUSES,
    INFERENCE_STAGES,
    KERNEL_KINDS,
    MODEL_STAGES,
    OUTSIDE_STAGES,
    PRODUCT_KINDS,
    SEVERITIES,
    STAGES,
    TRACK_KINDS,
    VIAS,
)
from stepscope.trace.memory_schema import STORAGES
from stepscope.trace.query import EXAMPLES
from stepscope.trace.schema import LAUNCHES, ROLES, STEPS
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))


PAGE = Path(__file__).parents[3] / "docs" / "reference" / "schema.md"
DRAWN = drawn_trace(
    """
    main     | 0 9 | aten::mm | Input_Dims=[[2,3]]
    main     | 2 4 | cudaLaunchKernel | corr=7
    stream 7 | 5 8 | sgemm | corr=7
    """
)
TRACE = DRAWN.with_events(step=[0, 0, 0], stage=["forward"] * 3).with_table(
    Table(LAUNCHES, {"cpu_event": [1], "device_event": [2]})
)
EXPECTED = [[(0, "forward", "sgemm", 0.003, 1)], [("aten::mm", 0.003, 1)], [("[[2,3]]", 1, 0.009)]]


# The columns that hold row numbers of a table, times (clock) or positions in the source file (file).
REFERENCES = {
    "events": {
        **{"events": "parent forward_event", "tracks": "track", "modules": "module", "origins": "origin"},
        **{"clock": "start_ns", "file": "source"},
    },
    "steps": {"clock": "start_ns end_ns device_end_ns window_start_ns window_end_ns"},
    "iterations": {"tracks": "track", "clock": "start_ns end_ns"},
    "stages": {"clock": "start_ns end_ns device_start_ns device_end_ns"},
    "modules": {"modules": "parent"},
    "module_shares": {"events": "event", "modules": "module"},
    "launches": {"events": "cpu_event device_event"},
    "idle": {"clock": "start_ns end_ns"},
    "memory": {"clock": "time_ns", "events": "event"},
    "segments": {"stacks": "stack"},
    "blocks": {"segments": "segment", "stacks": "stack"},
    "allocations": {"clock": "start_ns request_ns end_ns", "stacks": "stack"},
    "memory_events": {"clock": "time_ns", "stacks": "stack"},
    "stacks": {"stacks": "parent"},
    "tensor_uses": {"events": "event", "clock": "time_ns"},
    "flows": {"events": "source_event target_event"},
    "instants": {"clock": "time_ns", "tracks": "track", "file": "source"},
    "counters": {"clock": "time_ns", "tracks": "track"},
    "operations": {"events": "event"},
    "instruction_samples": {"events": "event"},
    "origins": {"origins": "first", "frames": "frame"},
    "inputs": {"origins": "first", "frames": "frame"},
    "frames": {"frames": "parent"},
    "contexts": {"contexts": "parent"},
    "context_metrics": {"contexts": "context"},
    "evidence": {"findings": "finding", "events": "event", "contexts": "context"},
}
WORDS = {
    **{"events.category": CATEGORIES, "events.stage": STAGES, "events.kind": KERNEL_KINDS},
    **{"tracks.kind": TRACK_KINDS, "iterations.stage": INFERENCE_STAGES, "stages.stage": STAGES},
    **{"stages.bound_by": BOUNDS, "idle.cause": IDLE_CAUSES, "origins.role": ROLES},
    **{"operations.precision": ("half", "tf32", "fp32"), "findings.severity": SEVERITIES},
    **{"contexts.kind": CONTEXT_KINDS, "contexts.via": VIAS, "contexts.stage": STAGES},
}


def test_the_page_is_current_and_has_each_table_of_a_trace() -> None:
    text = PAGE.read_text("utf-8")
    assert text == page(), "run python scripts/schema_docs.py > docs/reference/schema.md"
    for name, table in Trace({}).tables.items():
        assert f"## {name}\n\n{table.schema.meaning}\n" in text


def test_columns_refer_to_rows_times_and_words() -> None:
    references: dict[str, dict[str, list[str]]] = {}
    words = {}
    for name, table in Trace({}).tables.items():
        for column in table.schema.columns:
            if column.refers:
                references.setdefault(name, {}).setdefault(column.refers, []).append(column.name)
            if column.values:
                words[f"{name}.{column.name}"] = column.values
    assert words == WORDS
    assert references == {
        name: {to: columns.split() for to, columns in each.items()} for name, each in REFERENCES.items()
    }


def test_lists_of_words_are_parts_of_longer_ones() -> None:
    """Of events on the device, of stages of an inference and of kinds of kernels."""
    categories = drawn_trace("stream 7 | 0 1 | Memset\nstream 7 | 2 3 | Memcpy\nstream 7 | 4 5 | sgemm")
    assert categories.events.text("category").mask(*COMPUTING).all()
    assert {"forward", "prefill", "decode", "loss"} <= {*FORWARD_STAGES} <= {*STAGES}
    assert {*INFERENCE_STAGES} < {*MODEL_STAGES} < {*FORWARD_STAGES}
    assert {"evaluation", "checkpointing", "other"} == {*OUTSIDE_STAGES} & {*STAGES}
    assert {"gemm", "convolution", "attention"} == {*PRODUCT_KINDS} & {*KERNEL_KINDS}
    kinds = STORAGES.column("kind").meaning.replace(" or ", ", ").split(", ")
    assert [*STORAGE_KINDS] == kinds
    assert [*STORAGE_KINDS.values()] == ["weights", "buffers", "gradients", "optimizer state", "inputs"]


def test_a_column_is_found_by_its_name() -> None:
    assert (STEPS.column("end_ns").kind, OPERATIONS.column("flops").nullable) == ("i64", True)
    with pytest.raises(KeyError, match="stop"):
        STEPS.column("stop")


@pytest.mark.parametrize(("title", "expected"), [*zip(EXAMPLES, EXPECTED, strict=True)])
def test_the_examples_run(title: str, expected: list[tuple[object, ...]]) -> None:
    found = TRACE.query(EXAMPLES[title]).to_pylist()
    assert [tuple(row.values()) for row in found] == expected
