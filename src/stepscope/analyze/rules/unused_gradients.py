"""`unused_gradients`: backward goes on into modules that the update does not change."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.arrays import Rows
from stepscope.base.numbers import rounded
from stepscope.trace.row_order import last_begun, rows_by_key

_NO_OPTIMIZER = ""  # as the recorder names those that no optimizer holds
_PRODUCT = r"^aten::(mm|addmm|bmm|baddbmm)$"  # of the weight's gradient, and of the input's
# What forward keeps for backward, and memory of gradients.
BESIDES = 0.25  # of the time in these gradients; a GAN saved 26 % of a step, not 22 %
SURE = 0.6  # of that time: it is not computed any more; what else runs then may be slower
_NAMED = 3  # modules that the sentence names
WHY = "what backward computes of these modules"
_BETWEEN_PASSES = ("forward", "loss", "zero_grad", "optimizer")
ADVICE = (
    "Detach what these modules return before it is used (`fake.detach()`), or call them under "
    "torch.no_grad()."
)
FREEZE = (
    "If they are not to be trained, call requires_grad_(False) on them, or call them under "
    "torch.no_grad(). Else give their parameters to an optimizer."
)

Owners = Mapping[str, Sequence[str]]


def unused_gradients(context: RuleContext) -> Iterator[Finding]:
    """Gradients of modules that the update does not change, as of a generator in a discriminator's.

    Or of layers that no optimizer holds, and that still need gradients, as of a teacher. Only what backward
    computes after the last module that the update changes, or of models whose own input needs no gradient.

    Silent below 5 % of the step, where the file does not say what each optimizer updates (captures
    of `stepscope run` do), and where gradients of others are not zeroed before these are updated.
    """
    owners: Owners = context.trace.metadata.capture.get("updated_modules") or {}
    nodes = context.search.outermost(context.search.find(category="cpu_op", stage="backward"))
    if not owners or not len(nodes):
        return
    passes = _BackwardPasses(context, nodes, owners, _with_last_gradients(context, nodes))
    unused = passes.unused()
    spent = context.measures.longer_side_ms(unused.rows) if len(unused.rows) else 0.0
    if context.measures.is_small(spent):
        return
    is_free = unused.modules <= set(owners.get(_NO_OPTIMIZER, ()))
    changed = {path for name in unused.updates for path in owners.get(name, ())}
    update = f"the update of {' and '.join(unused.updates)} does not change"
    yield context.finding(
        f"Backward computes unused gradients, {rounded(spent)} ms per step. "
        f"They are of {_names(unused.modules, changed)}, which "
        f"{'no optimizer has updated so far' if is_free else update}.",
        context.advice(FREEZE if is_free else ADVICE),
        unused.rows,
        context.gains.bound(spent, WHY, 0.0 if context.measures.has_device else BESIDES, SURE),
    )


def _with_last_gradients(context: RuleContext, nodes: Rows) -> dict[int, bool]:
    """Whether nodes of products, convolutions and embeddings compute no gradient of their input."""
    around = context.search.enclosing(nodes)
    products = context.search.find(_PRODUCT, category="cpu_op", stage="backward")
    node, count = np.unique(around[products], return_counts=True)
    last = dict(zip(node.tolist(), (count == 1).tolist(), strict=True))
    rows = context.search.find(r"^aten::convolution_backward$", stage="backward")
    ends = context.search.each_argument(
        rows, "Concrete Inputs", lambda values: str((values or [""])[-1])[:6] == "[False"
    )
    last |= dict(zip(around[rows].tolist(), ends, strict=True))
    tables = context.search.find("EmbeddingBackward", stage="backward")
    return last | dict.fromkeys(around[tables].tolist(), True)


@dataclass
class _Unused:
    """Nodes of backward that no update needs, the modules they reach, and whose updates do."""

    rows: Rows
    modules: set[str]
    updates: list[str]


class _BackwardPasses:
    """The backward passes of the steps: nodes in order, and the update that each is part of."""

    def __init__(self, context: RuleContext, nodes: Rows, owners: Owners, last: Mapping[int, bool]) -> None:
        self._owners, self._last = owners, last
        self._all = {path for paths in owners.values() for path in paths}
        self._nodes = np.sort(nodes)
        paths = context.trace["modules"].text("path")
        module = context.events["module"][self._nodes]
        self._paths = [paths[int(one)] or "" if one >= 0 else "" for one in module]
        runs = context.trace["stages"]
        runs = runs.take(runs["rank"] == context.rank)
        self._labels = runs.text("optimizer")
        zeroes = np.flatnonzero(runs.text("stage").mask("zero_grad"))
        self._zeroed = {name for run in zeroes.tolist() for name in self._updates(run)}
        self._run = last_begun(runs["start_ns"], context.events["start_ns"][self._nodes])
        self._number = np.cumsum(runs.text("stage").mask(*_BETWEEN_PASSES))[self._run]

    def unused(self) -> _Unused:
        """The nodes of each pass after the last one that its update needs."""
        unused = _Unused(np.zeros(0, np.int64), set(), [])
        for places in rows_by_key(self._number.astype(np.int64)).values():
            run = int(self._run[places[0]])
            found = np.union1d(self._after_last_own(places), self._of_free_models(places))
            reached = {self._paths[place] for place in found.tolist()} & self._all
            if reached and reached <= self._discarded(run):
                unused.rows = np.append(unused.rows, self._nodes[found])
                unused.modules |= reached
                unused.updates = sorted({*unused.updates, *self._updates(run)})
        return unused

    def _after_last_own(self, places: Rows) -> Rows:
        """The nodes of a pass after the last one of a module that its update changes."""
        updates = self._updates(int(self._run[places[0]]))
        own = {path for name in updates for path in self._owners.get(name, ())}
        needed = [n for n, place in enumerate(places.tolist()) if self._paths[place] in own]
        return places[needed[-1] + 1 :] if needed else places[:0]

    def _of_free_models(self, places: Rows) -> Rows:
        """The nodes of models that no optimizer holds, and through which no gradient goes on."""
        held = {path for name, paths in self._owners.items() if name != _NO_OPTIMIZER for path in paths}
        free = {_root(path) for path in self._owners.get(_NO_OPTIMIZER, ())} - {_root(path) for path in held}
        roots = [_root(self._paths[place]) for place in places.tolist()]
        chosen: list[int] = []
        for model in free & set(roots):
            of = [place for place, root in zip(places.tolist(), roots, strict=True) if root == model]
            ends = [self._last[row] for row in self._nodes[of].tolist() if row in self._last]
            chosen += of if ends and ends[-1] else []  # the first of the forward pass comes last
        return np.array(sorted(chosen), np.int64)

    def _discarded(self, run: int) -> set[str]:
        """The modules whose gradients from this pass no update uses."""
        others = self._owners.keys() - set(self._updates(run))
        return {path for name in others & {*self._zeroed, _NO_OPTIMIZER} for path in self._owners[name]}

    def _updates(self, run: int) -> list[str]:
        """The optimizers to whose steps a run of a stage leads."""
        return (self._labels[run] or "").split(", ")


def _names(reached: set[str], changed: set[str]) -> str:
    """The models; of one that the update changes in part, the modules."""
    partly = {_root(path) for path in changed}
    names = sorted({path if _root(path) in partly else _root(path) for path in reached})
    rest = len(names) - _NAMED
    return ", ".join(names[:_NAMED]) + (f" and {rest} more" if rest > 0 else "")


def _root(path: str) -> str:
    return path.partition(".")[0]
