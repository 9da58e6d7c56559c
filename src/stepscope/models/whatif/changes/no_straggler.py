"""`no_straggler`: no rank slower than its peers."""

import re

import numpy as np

from stepscope.base.arrays import Ids, Mask
from stepscope.errors import ChangeError
from stepscope.facts.annotate.ranks import usual_of_peers
from stepscope.graph import Graph, scale, sending_pairs
from stepscope.models.ranks.process_groups import places_of_pairs
from stepscope.models.whatif.change import Change

_SEND = re.compile(r"(?i)(^|[:_])i?(send|recv)_?$")  # NCCL runs all-to-all as SendRecv
_ALIKE = 0.99  # factor on a rank's work; chosen: from here on it works as long as its peers


def no_straggler(graph: Graph) -> Graph:
    """Ranks that work longer than their peers work as long as the median peer.

    Peers are the workers of one pipeline stage, else they run the same kernels; if some rank has no
    peer, all ranks are compared, unless they send to each other as stages do. Work is kernels and copies;
    if there are none, what the training loop does, Python included, while it does not wait. The CPU
    work of slower ranks shrinks in the same proportion.
    """
    ranks, place = np.unique(graph.threads["rank"][graph.tasks["thread"]], return_inverse=True)
    if len(ranks) < 2:
        raise ChangeError("no_straggler: the trace has one rank; open the folder of all ranks")
    work = ~graph.tasks.text("category").mask("communication")
    counts, time = work & graph.on_device, graph.tasks["duration_ns"]
    if not counts.any():
        counts, time = work & graph.of_main_threads, time + graph.tasks["gap_ns"]
    busy = np.bincount(place[counts], time[counts], len(ranks)).astype(np.float64)
    factor = np.minimum(usual_of_peers(busy, _peers(graph, ranks, place, counts)) / np.maximum(busy, 1), 1)
    if (factor > _ALIKE).all():
        raise ChangeError("no_straggler: all ranks work about as long as their peers")
    return scale(graph, work, factor[place][work], gaps=True)


def _peers(graph: Graph, ranks: Ids, place: Ids, counts: Mask) -> Ids:
    """The group of each rank: its pipeline stage, else the same kernels, else all unless ranks send."""
    row = {rank: row for row, rank in enumerate(ranks.tolist())}
    pairs = [(row[one], row[other]) for one, other in sending_pairs(graph) if {one, other} <= row.keys()]
    if places := places_of_pairs(pairs, len(row)):
        return places["pipeline stage"]
    names = graph.tasks.text("name").compact()
    table = np.zeros((len(ranks), len(names.values)), np.int64)
    np.add.at(table, (place[counts], names.codes[counts]), 1)
    _, group = np.unique(table, axis=0, return_inverse=True)
    size = np.bincount(group.ravel())
    sends = names.where(lambda name: bool(_SEND.search(name)))
    sends &= graph.tasks.text("category").mask("communication")
    return group.ravel() if size.min() > 1 or sends.any() else np.zeros(len(group), np.int64)


CHANGE = Change(
    no_straggler,
    group="Ranks of one job",
    basis="the measured work of the median peer",
    assumptions=("slow ranks are slow throughout, on the device and on the CPU",),
    makeable=False,
)
