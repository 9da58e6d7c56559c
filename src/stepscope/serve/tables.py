"""Answers that are tables: the overview, the model tree, the work by name."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from stepscope.errors import TraceError
from stepscope.serve.opened import OpenTrace
from stepscope.serve.query import Query
from stepscope.summary import Summary, summarise
from stepscope.summary.kernels import Kernel
from stepscope.summary.work import WorkOfName, work_by_name
from stepscope.timeline.names import short_name
from stepscope.timeline.step_id import StepId

_CONFIGURATION = {
    "grid": "grid",
    "block": "block",
    "registers": "registers per thread",
    "shared_bytes": "shared memory",
    "blocks_per_sm": "blocks per SM",
    "warps_per_sm": "warps per SM",
}
_OCCUPANCY = "est. achieved occupancy %"


def overview(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """The facts of a report, and what the page needs to begin.

    A trace without a step has no facts, and `why` says why: it may still have contexts.
    """
    rank, trace = opened.rank_of(query), opened.trace
    facts, why = _facts(opened, query)
    return {
        "start": opened.start,
        "rank": rank,
        "ranks": list(trace.metadata.ranks),
        "steps": _steps(opened),
        "has": {
            "device": facts is not None and facts["kernels_are"] == "kernels",
            "modules": len(trace["modules"]) > 0,
            "memory": len(trace["memory"]) > 0,
            "source": bool(opened.sources.names),
            "contexts": len(trace["contexts"]) > 0,
        },
        "facts": facts,
        "why": why,
        "warnings": [row for row in trace["warnings"].rows() if row["rank"] == rank],
    }


def _facts(opened: OpenTrace, query: Query) -> tuple[dict[str, Any] | None, str]:
    try:
        facts = _summary(opened, query).to_json()
    except TraceError as error:
        if len(opened.trace["steps"]):
            raise
        return None, str(error)
    del facts["modules"], facts["kernels"]
    return facts, ""


def modules(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """The model tree with its costs."""
    summary = _summary(opened, query)
    return {
        "rank": summary.rank,
        "steps": summary.steps.numbers,
        "evidence": summary.modules_evidence,
        "tree": [_node(asdict(node)) for node in summary.modules],
    }


def kernels(opened: OpenTrace, query: Query) -> dict[str, Any]:
    """Device work by name, or operators where there is none."""
    rank, step = opened.rank_of(query), query.number("step")
    work = work_by_name(opened.trace, rank, step)
    rates = {one.name: one for one in _summary(opened, query).kernels}
    rows = [{**_work(opened, one), **_rates(rates.get(one.name))} for one in work.rows]
    return {"are": work.are, "rank": rank, "steps": work.steps, "rows": rows}


def kernel_configuration(opened: OpenTrace, event: int) -> dict[str, Any] | None:
    """How a kernel was launched, as far as it was recorded; None where nothing was."""
    told = opened.trace.event_arguments(event)
    found = {name: told.get(key) for name, key in _CONFIGURATION.items()}
    percent = told.get(_OCCUPANCY)
    found["occupancy"] = percent / 100 if isinstance(percent, (int, float)) else None
    return found if any(value is not None for value in found.values()) else None


def _summary(opened: OpenTrace, query: Query) -> Summary:
    rank, step = opened.rank_of(query), query.number("step")
    return opened.keep(("summary", rank, step), lambda: summarise(opened.trace, rank, step))


def _steps(opened: OpenTrace) -> list[dict[str, Any]]:
    """The steps of all ranks."""
    level = opened.timeline.level("", every=True)
    costs = level.costs
    found = []
    for number, one in enumerate(level.operations):
        found.append(
            {
                "id": one.id,
                **StepId.of(one.id)._asdict(),
                "start_ns": int(costs.start_ns[number]),
                "end_ns": int(costs.end_ns[number]),
                "runtime_ns": int(costs.runtime_ns[number]),
                "device_busy_ns": int(costs.device_ns[number]),
            }
        )
    return found


def _node(node: dict[str, Any]) -> dict[str, Any]:
    """A node of the tree under the names that the page has for it; `asdict` turned all of it."""
    return {
        **{name: value for name, value in node.items() if name not in ("kind", "copies")},
        "class": node["kind"],
        "children": [_node(child) for child in node["children"]],
        **({"copies": [_node(copy) for copy in node["copies"]]} if node["copies"] else {}),
    }


def _work(opened: OpenTrace, row: WorkOfName) -> dict[str, Any]:
    how = kernel_configuration(opened, row.longest_event) or {}
    return {
        **asdict(row),
        "short": short_name(row.name),
        "blocks_per_sm": how.get("blocks_per_sm"),
        "occupancy": how.get("occupancy"),
    }


def _rates(kernel: Kernel | None) -> dict[str, Any]:
    names = ("tflops", "gbytes", "of_peak", "limit")
    return {name: getattr(kernel, name) if kernel else None for name in names}
