"""What rules look at: the steps of one rank, to search, to measure, and to make findings of."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from stepscope.analyze.finding import Finding, Gain, Place
from stepscope.analyze.gains import Gains, glob
from stepscope.analyze.places import Places
from stepscope.analyze.search import Mask, Rows
from stepscope.contexts import ContextTree

__all__ = ["Mask", "Rows", "Subject", "glob"]

# A compilation's annotation has the line of its function.
_TELL_LINES = ("python", "annotation")


class Subject(Gains):
    """The steps of one rank of a trace: `Search`, `Measures`, `Gains`, and findings of them.

    Args:
        trace: an annotated trace; of several ranks, for rules that compare them. Of one that holds
            a calling-context tree and no events the tree is looked at: what follows what, and what
            the device waits for, is not known then.
        rank: whose steps; by default those of the rank whose devices work longest.

    Raises:
        TraceError: if there is no such rank, or no step.
    """

    @property
    def is_jax(self) -> bool:
        """Whether the trace is of JAX, or of another program that XLA compiled."""
        return self.trace.metadata.framework in ("jax", "xla")

    def in_words(self, pytorch: str, *, jax: str) -> str:
        """What to do, in the words of the framework that the trace is of.

        Args:
            pytorch: for PyTorch, and where no framework is known.
            jax: for JAX.
        """
        return jax if self.is_jax else pytorch

    def finding(self, what: str, advice: str, rows: Rows, gain: Gain) -> Finding:
        """A finding with its evidence.

        Args:
            what: one sentence on what is slow.
            advice: one sentence on what to do.
            rows: the events that show it, at least one.
            gain: what it could give back.
        """
        if not len(rows):
            raise ValueError("expected at least one event as evidence, found none")
        if self.unfolded:
            places = self._places.of(np.asarray(rows), self.count, self.unfolded.calls)
            node = self.unfolded.node
            places = tuple(
                replace(one, events=(), contexts=tuple(node[list(one.events)].tolist()))
                for one in places
            )
        else:
            places = self._places.of(np.asarray(rows), self.count)
        return Finding("", what, advice, places, gain, self.step_ms, self.rank)

    def finding_in_tree(self, what: str, advice: str, nodes: Rows, gain: Gain) -> Finding:
        """A finding whose evidence are nodes of the calling-context tree, at least one."""
        if self.contexts is None or not len(nodes):
            raise ValueError("expected nodes of a calling-context tree as evidence, found none")
        places = tuple(self._place_in_tree(self.contexts, int(node)) for node in nodes)
        return Finding("", what, advice, places, gain, self.step_ms, self.rank)

    def _place_in_tree(self, tree: ContextTree, node: int) -> Place:
        path = list(tree.nodes.take(tree.path(node)).rows())
        lines = [one for one in path if one["kind"] in _TELL_LINES and one["line"]]
        modules = [one["name"] for one in path if one["kind"] == "module"]
        count, ns = _measured(tree, node)
        return Place(
            name=tree.label(node),
            stage=path[-1]["stage"] or "",
            module=modules[-1] if modules else "",
            file=lines[-1]["file"] if lines else "",
            line=lines[-1]["line"] if lines else None,
            function=lines[-1]["name"] if lines and lines[-1]["kind"] == "python" else "",
            count=count / self.count,
            ms=ns / 1e6 / self.count,
            contexts=(node,),
        )

    def place(self, row: int) -> str:
        """Where an event comes from, as ` in layer1 · net.py:12`, empty where nothing is known."""
        where = self._places.of(np.array([row]), 1)[0].where
        return f" in {where}" if where else ""

    def most_in(self, rows: Rows) -> str:
        """Where most of the time of some events comes from, as `place` says it of one."""
        first, *others = self._places.of(np.asarray(rows), 1)
        if not first.where:
            return ""
        return f", most in {first.where}" if others else f" in {first.where}"

    @cached_property
    def _places(self) -> Places:
        return Places(self.trace)


def _measured(tree: ContextTree, node: int) -> tuple[float, float]:
    """How often a context ran, and its ns; of an instruction its samples and part of its kernel."""
    for name in ("call_ns", "device_ns"):
        if tree.has(name) and tree.own(name).count[node]:
            own = tree.own(name)
            return float(own.count[node]), float(own.sum[node])
    if not tree.has("stalls") or not tree.has("device_ns"):
        return 0.0, 0.0
    stalls, kinds = tree.inclusive("stalls").sum, tree.nodes.text("kind")
    kernel = next((one for one in reversed(tree.path(node)) if kinds[one] == "kernel"), node)
    part = float(stalls[node]) / max(float(stalls[kernel]), 1.0)
    return float(stalls[node]), part * float(tree.own("device_ns").sum[kernel])
