"""Parameters, gradients and optimizer state sharded over the workers, as by FSDP and ZeRO."""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from heapq import heapreplace

import numpy as np

from stepscope.base.arrays import Ids
from stepscope.errors import ChangeError
from stepscope.graph import Graph, add_links, scale, simulate
from stepscope.models.memory.lifetimes import Lifetimes
from stepscope.models.memory.owners import GRADIENTS, OPTIMIZER, TEMPORARIES, WEIGHTS
from stepscope.models.memory.recorded_memory import RecordedMemory
from stepscope.models.whatif.cpu.calibrated import on_cpu
from stepscope.models.whatif.cpu.updates import shard_on_cpu
from stepscope.models.whatif.parts.gradients import (
    MIB,
    Gradients,
    TimeOf,
    after_backward,
    filled,
    find_gradients,
    with_bucket_copies,
    with_buckets_sent,
)
from stepscope.models.whatif.parts.layers import (
    add_channel,
    begins_next,
    last_updates,
    neighbor,
    outermost,
    scaled_with_gaps,
    weight_update,
)
from stepscope.models.whatif.parts.network import (
    Network,
    add_blocking,
    append_collectives,
    refuse_communication,
)


@dataclass(frozen=True)
class Unit:
    """Parameters of a step that are gathered and dropped together."""

    tensors: int
    bytes: int
    used: int  # tasks.id of the first task that needs them in forward
    begun: int  # tasks.id of the first task that needs them in backward
    ready: Ids  # tasks.id of the tasks that complete their gradients, in order
    stays: bool = False  # whether they stay gathered from forward to backward: those of no matching module


def units_of(
    graph: Graph, change: str, gradients: Gradients, step: int, glob: str, most: float
) -> Iterator[Unit]:
    """The units of a step in the order in which forward uses them.

    Args:
        glob: for the paths of the modules that are units; empty for units by size.
        most: the size at which a unit is full, bytes.
    """
    simulation = simulate(graph)
    start, end = simulation.start_ns, simulation.end_ns
    rows = np.flatnonzero((gradients.step == step) & (gradients.used >= 0) & (gradients.begun >= 0))
    if not len(rows):
        raise ChangeError(f"{change}: the trace does not show where forward and backward use the parameters")
    rows = rows[np.argsort(start[gradients.used[rows]], kind="stable")]
    key = filled(gradients.step[rows], gradients.bytes[rows], most, most)
    if glob:
        key = np.append(outermost(graph, glob), -1)[gradients.module[rows]]
        if (key < 0).all():
            raise ChangeError(f"{change}: no module with parameters matches {glob!r}")
    _, order = np.unique(key, return_index=True)
    for first in np.sort(order).tolist():
        members = rows[key == key[first]]
        begun, ready = gradients.begun[members], gradients.ready[members]
        yield Unit(
            len(members),
            int(gradients.bytes[members].sum()),
            int(gradients.used[members[0]]),
            int(begun[np.argmin(start[begun])]),
            ready[np.argsort(end[ready], kind="stable")],
            stays=bool(key[first] < 0),
        )


SHARDING_ASSUMPTIONS = (
    "a ring for each all-gather and reduce-scatter, idle links, workers that are ready together",
    "a worker's share of the weight update takes 1/N of its time, with as many launches",
    "copies into and out of shards take no time, and collectives slow nothing down",
)


def with_sharded_units(graph: Graph, change: str, network: Network, unit: str, unit_mb: float) -> Graph:
    """Shard parameters, gradients and optimizer state in units; see `fsdp`."""
    refuse_communication(graph, change)
    gradients = find_gradients(graph, change)
    units = {
        step: list(units_of(graph, change, gradients, step, unit, unit_mb * MIB))
        for step in graph.window.steps
    }
    if on_cpu(graph):
        return shard_on_cpu(graph, change, network, [unit for of_step in units.values() for unit in of_step])
    graph = scale(graph, weight_update(graph, change), 1 / network.workers)
    updated, consumers = last_updates(graph), after_backward(graph, gradients)
    # Of several backward passes in a step, the last.
    awaits = dict(zip(gradients.step.tolist(), map(consumers.get, gradients.backward.tolist()), strict=True))
    graph, channel = add_channel(graph, "shards")
    previous = -1
    for step in graph.window.steps:
        if units[step]:
            graph = _with_units(graph, channel, network, step, units[step], previous, awaits[step])
        previous = updated.get(step, -1)
    return graph


def _with_units(
    graph: Graph, channel: int, network: Network, step: int, units: list[Unit], previous: int, consumer: int
) -> Graph:
    """Add the all-gathers of one step, in forward and backward order, and its reduce-scatters."""
    count = len(units)
    start = simulate(graph).start_ns
    used, begun = (np.array([getattr(unit, when) for unit in units]) for when in ("used", "begun"))
    dropped = np.flatnonzero([not unit.stays for unit in units])
    backward = dropped[np.argsort(start[begun[dropped]], kind="stable")]
    order = np.append(np.arange(count), backward)
    size = np.array([unit.bytes for unit in units], np.int64)
    names = [f"all-gather {unit}" for unit in order] + [f"reduce-scatter {n}" for n in range(count)]
    sizes = np.append(size[order], size)
    graph, new = append_collectives(graph, channel, names, network.gather_ns(sizes), bytes=sizes, step=step)
    gather, scatter = new[: len(order)], new[len(order) :]
    needs = np.append(used, begun[backward])
    graph = add_links(graph, gather, needs, "communication")
    before_use = neighbor(graph, needs, -1)
    before_use = np.where(before_use < 0, needs, before_use)
    graph = add_links(graph, before_use[1:-1], gather[2:], "communication")
    if previous >= 0:
        graph = add_links(graph, [previous, previous], gather[:2], "communication")
    for unit, task in zip(units, scatter.tolist(), strict=True):
        graph = add_links(graph, unit.ready, np.full(len(unit.ready), task), "communication")
    return add_links(graph, scatter, np.full(count, consumer), "communication")


ZERO_ASSUMPTIONS_ON_CPU = (
    "idle links, workers that are ready together; copies to and from buckets are as fast as "
    "calibrated, else as this step's elementwise operators",
    "the weight update, and Python between its operators, take a worker's share of their time",
    "with by=torch whole parameters are updated, each broadcast; as in DeepSpeed equal shares, in "
    "one all-gather",
)


def with_zero_redundancy(graph: Graph, network: Network, gradients: Gradients, cap: float) -> Graph:
    """All-reduce gradients in buckets of `cap` bytes; let each worker update its parameters and
    broadcast them.

    Whole parameters are divided by size, so the worker with the largest share counts. There is one broadcast
    per parameter, one worker after the other; on a CPU the step continues once all are done.

    Source: PyTorch, torch/distributed/optim/zero_redundancy_optimizer.py, _partition_parameters and
    _sync_params.
    """
    graph = _updated(graph, gradients, network.workers)
    graph, gradients, consumers = with_bucket_copies(graph, gradients)
    graph = with_buckets_sent(graph, gradients, consumers, cap, "all-reduce", network.all_reduce_ns)
    return with_parameters_sent(
        graph, gradients, "broadcast", lambda sizes: network.broadcast_ns(sizes).sum(), blocks=on_cpu(graph)
    )


def with_parameters_sent(
    graph: Graph, gradients: Gradients, name: str, time_ns: TimeOf, blocks: bool = False
) -> Graph:
    """Send the parameters by a collective after the weight update of each step that makes one.

    The next step's forward waits for it; with `blocks`, the thread that updates them.
    """
    graph, channel = add_channel(graph, name, ordered=True)
    last, begins = last_updates(graph), begins_next(graph)
    steps = [step for step in np.unique(gradients.step).tolist() if step in last]
    sizes = [gradients.bytes[gradients.step == step] for step in steps]
    time, total = [float(time_ns(size)) for size in sizes], [int(size.sum()) for size in sizes]
    updated, names = [last[step] for step in steps], [name] * len(steps)
    if blocks:
        return add_blocking(graph, channel, updated, names, time, size=total)[0]
    graph, new = append_collectives(graph, channel, names, time, bytes=total, step=steps)
    graph = add_links(graph, updated, new, "communication")
    return add_links(graph, new, [begins[step] for step in steps], "communication")


def largest_share(size: list[int], workers: int) -> float:
    """The largest share of all bytes that a worker has."""
    load = [0] * workers
    for bytes_ in sorted(size, reverse=True):
        heapreplace(load, load[0] + bytes_)
    return max(load) / sum(load)


def _updated(graph: Graph, gradients: Gradients, workers: int) -> Graph:
    update = weight_update(graph, "zero")
    share = largest_share(gradients.bytes[gradients.step == gradients.step[0]].tolist(), workers)
    # On a CPU there is Python between the operators, too.
    return (scaled_with_gaps if on_cpu(graph) else scale)(graph, update, share)


_GATHERED = 2  # one unit computes while the next one is gathered


def zero_sharded(
    memory: RecordedMemory, stage: int = 2, workers: int = 8, bucket_cap_mb: float = 25.0
) -> RecordedMemory:
    """The memory of one rank under ZeRO; see `zero`.

    Source: Rajbhandari et al., "ZeRO", SC 2020, section 5.
    """
    kinds = (OPTIMIZER, GRADIENTS, WEIGHTS)[: max(1, min(stage, 3))]
    extra = bucket_cap_mb * MIB * (_GATHERED if stage >= 3 else stage >= 2)
    return _sharded(memory, kinds, workers, int(extra))


def fully_sharded(
    memory: RecordedMemory, unit: str = "", workers: int = 8, unit_mb: float = 25.0
) -> RecordedMemory:
    """The memory of one rank under FSDP; see `fsdp`."""
    largest = _largest_unit(memory, unit) if unit else int(unit_mb * MIB)
    return _sharded(memory, (OPTIMIZER, GRADIENTS, WEIGHTS), workers, _GATHERED * largest)


def _sharded(memory: RecordedMemory, kinds: tuple[int, ...], workers: int, extra: int) -> RecordedMemory:
    life = memory.lifetimes
    share = np.where(np.isin(life.kind, kinds), -(-life.bytes // workers), life.bytes)
    held = int(life.bytes[life.kind == WEIGHTS].sum())
    gathered = Lifetimes.added([min(extra, held)], [-np.inf], [np.inf], [TEMPORARIES])
    return memory.with_lifetimes(life.changed(bytes=share).plus(gathered))


def _largest_unit(memory: RecordedMemory, glob: str) -> int:
    storages = memory.recording.trace["storages"]
    mine = storages.text("kind").mask("parameter") & storages.text("moment").mask("before")
    sizes: dict[str, int] = {}
    for row in np.flatnonzero(mine).tolist():
        parts = (storages.text("path")[row] or "").split(".")
        prefixes = (".".join(parts[: n + 1]) for n in range(len(parts)))
        found = next((path for path in prefixes if fnmatchcase(path, glob)), "")
        sizes[found] = sizes.get(found, 0) + int(storages["bytes"][row])
    return max(sizes.values(), default=0)
