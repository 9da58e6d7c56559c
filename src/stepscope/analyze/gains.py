"""What a change would give back: by the what-if engine, else a stated bound."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cached_property

from stepscope.analyze.finding import Gain
from stepscope.analyze.measures import Measures
from stepscope.analyze.search import Rows
from stepscope.errors import StepscopeError
from stepscope.graph import Graph, build_graph, build_ranks
from stepscope.whatif import CHANGES, Prediction, parse_request
from stepscope.whatif.prediction import Baseline


class Gains(Measures):
    """What changes of the steps would give back."""

    def whatif(self, *changes: str) -> Gain | None:
        """What changes of `stepscope whatif` would give back, None where they do not apply.

        Args:
            changes: as `amp` or `scale:select=name=aten::item,factor=0`, made in this order.
        """
        if changes not in self._predictions:
            self._predictions[changes] = self._predict(changes)
        prediction = self._predictions[changes]
        if prediction is None:
            return None
        low, high = (prediction.replayed_step_ms - one for one in reversed(prediction.range))
        ms = prediction.replayed_step_ms - prediction.predicted_step_ms
        return Gain(max(ms, 0.0), "", changes, (max(low, 0.0), max(high, 0.0)))

    def gain(
        self,
        rows: Rows,
        *changes: str,
        note: str = "",
        part: float = 1.0,
    ) -> Gain:
        """What changes would give back by the what-if engine; where they do not apply, a bound.

        Args:
            rows: the events whose time is the bound.
            changes: as for `whatif`.
            note: what the change supposes, said beside it.
            part: of the events' time is the bound.
        """
        found = self.whatif(*changes) if changes else None
        if found is None:
            return self.bound(
                part * self.ms(self.outermost(rows)), note or "at most the time of these events"
            )
        return replace(found, note=note)

    def bound(self, ms: float, why: str) -> Gain:
        """A stated bound, where no change of the what-if engine tells."""
        return Gain(float(min(ms, self.step_ms)), why)

    @cached_property
    def graph(self) -> Graph:
        """The dependency graph of the steps: of all ranks, unless one was asked for."""
        if self._asked is not None or len(self.trace.metadata.ranks) == 1:
            return build_graph(self._recorded, self.rank)
        return build_ranks(self._recorded)

    @cached_property
    def _baseline(self) -> Baseline:
        return Baseline(self.graph)

    @cached_property
    def _predictions(self) -> dict[tuple[str, ...], Prediction | None]:
        return {}

    def _predict(self, changes: tuple[str, ...]) -> Prediction | None:
        if self.unfolded:
            return None  # a simulation needs to know when things ran
        try:
            requests = [parse_request(text, CHANGES) for text in changes]
            return self._baseline.predict(requests)[0]
        except StepscopeError:
            return None


def glob(name: str) -> str:
    """A glob that a what-if change takes for exactly this name: what it cannot hold becomes `?`."""
    return re.sub(r"[,+*?\[\]]", "?", name)
