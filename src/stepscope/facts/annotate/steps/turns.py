"""Optimizers of one class that step in turns, as those of a GAN's two models.

torch names the range of an update by the class of its optimizer alone. What an update changes shows
in the sizes of what its operators and kernels work on, and in the gradients computed before it.
"""

import re

import numpy as np

from stepscope.base.arrays import Ids, IntArray, Mask, Rows
from stepscope.facts.annotate.links.backward import is_backward
from stepscope.facts.annotate.range_names import is_update, operators, range_label, stage_of_range
from stepscope.trace.nesting import inherit
from stepscope.trace.row_order import inverse
from stepscope.trace.sets import Interner, distinct, distinct_rows
from stepscope.trace.trace import Trace

_LONGEST = 101  # updates in a cycle: WGAN's critic steps up to 100 times before the generator
_LIKE_BEFORE = 4  # updates as one cycle before: by chance six of two kinds alternate in 1 of 32 cases
_SIZES = re.compile(rb'"(?:Input Dims|grid)": *(\[[\d\[\], -]*\])')


def optimizers_in_turn(trace: Trace, rows: Rows) -> tuple[Ids, str]:
    """A number for the optimizer of each update, and why some may be of more; empty if nothing shows that.

    Updates of one class are of several optimizers if they run the same operators and what they change differs
    in a cycle that repeats; or if their passes differ so, and each cycle loads one batch. If each loads its
    own, each is a step, whatever differs. `rows` are updates after passes of their own, events.id, ascending.
    """
    begin, names = trace.events["start_ns"], trace.events.text("name")
    optimizer, doubt = names.codes[rows].astype(np.int64), ""
    loads = begin[names.where(lambda name: stage_of_range(name) == "data_loading")]
    of_class = [np.flatnonzero(optimizer == name) for name in distinct(optimizer).tolist()]
    loaded_by = [np.diff(np.searchsorted(loads, begin[rows[own]]), prepend=0) > 0 for own in of_class]
    unsure = [(own, loaded) for own, loaded in zip(of_class, loaded_by, strict=True) if not loaded[1:].all()]
    if not unsure:
        return optimizer, doubt
    changed, ran = _changes(trace, rows)
    nodes = np.flatnonzero(is_backward(trace.events))
    passed = _alike(names.codes[nodes], np.searchsorted(begin[rows], begin[nodes]), len(rows))
    for own, loaded in unsure:
        name = int(optimizer[own[0]])
        keys, turn = _turn(changed[own], ran[own], passed[own], loaded)
        if turn:
            optimizer[own] = keys[turn + np.arange(len(own)) % turn]
        elif cycle := max(_cycle(keys[own])[0] for keys in (changed, passed)):
            doubt = (
                f"the file marks no steps, and each {range_label(names.values[name])} ends one; if several "
                f"optimizers of this class step in turns, a step has {cycle} of these: mark it with a range"
            )
    return optimizer, doubt


def _turn(changed: IntArray, ran: IntArray, passed: IntArray, loaded: Mask) -> tuple[IntArray, int]:
    """What tells the updates of several optimizers apart, and how many updates a turn of all has; 0 for one.

    Of each update what it changed, which operators it ran, the passes before it, and whether they
    follow a batch; shape (updates,) each.
    """
    length, repeats = _cycle(changed)
    if repeats >= _LIKE_BEFORE and (ran[length:] == ran[-1]).all():
        return changed, length
    length, _ = _cycle(passed)
    has_one_batch = _cycle(loaded)[0] == length and loaded[-length:].sum() == 1
    return passed, length if has_one_batch else 0


def _cycle(keys: IntArray | Mask) -> tuple[int, int]:
    """The length of the shortest cycle of different keys, and how many equal the key one cycle before.

    The first cycle may differ: an optimizer creates its state. 0 and 0 if nothing repeats.
    """
    for length in range(2, min(len(keys) // 2, _LONGEST) + 1):
        same = keys[length:] == keys[:-length]
        for first in (0, length):
            if len(same) > first and same[first:].all() and (keys[-length:] != keys[-1]).any():
                return length, len(same) - first
    return 0, 0


def _changes(trace: Trace, rows: Rows) -> tuple[IntArray, IntArray]:
    """What each update changes, and which operators it runs: equal numbers for equal ones, (updates,)."""
    events, launches = trace.events, trace["launches"]
    number = inverse(rows, len(events))
    update = inherit(events["parent"], number).astype(np.int64)
    ran = np.flatnonzero((update >= 0) & operators(events))
    changes = ran[is_update(events, ran)]
    launches = launches.take(update[launches["cpu_event"]] >= 0)
    parts = np.append(changes, launches["device_event"])
    of = update[np.append(changes, launches["cpu_event"])]
    texts = map(_SIZES.search, trace.arguments.texts(events["source"][parts]))
    sizes = Interner[bytes]().codes(found[1] if found else b"" for found in texts).astype(np.int64)
    kinds = np.array(distinct_rows(update[ran], events["name"][ran])[0], np.int64).reshape(-1, 2)
    changed = _alike(distinct_rows(events["name"][parts], sizes)[1], of, len(rows))
    return changed, _alike(kinds[:, 1], kinds[:, 0], len(rows))


def _alike(keys: IntArray, group: IntArray, groups: int) -> IntArray:
    """A number for each group, the same where each key is in it as often; later groups do not count."""
    values = np.random.default_rng(0).integers(1 << 62, size=int(keys.max(initial=0)) + 1)
    total = np.zeros(groups + 1, np.int64)
    np.add.at(total, group, values[keys])
    return total[:groups]
