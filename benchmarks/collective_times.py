"""All-reduces, or BlueConnect's passes, by themselves on shaped links, next to their model.

    python benchmarks/collective_times.py [--way blueconnect] [--rounds N]

The workers of `network_accuracy.py`, its topologies and its bandwidths, but nothing is computed: by
this, what the model of a link misses is separated from what processes take from each other that
share cores. A line has the predicted time, the median and the least measured one, and the CPU time
of a worker. Needs root, `ip` and `tc` (apt-get install iproute2).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.networked.blueconnect import BlueConnect
from benchmarks.networked.job import ENVIRONMENT
from benchmarks.networked.links import PAYLOAD, TOPOLOGIES, Links, environment, links
from benchmarks.networked.points import BANDWIDTHS, LATENCY_US, WITHIN_MBIT
from benchmarks.networked.trainers import FACTORS

from stepscope.models.whatif.parts.network import Network

MIB = 1 << 20
SIZES = (1 * MIB, 8 * MIB, 25 * MIB)
_PORT = 29571
Row = tuple[int, float, float, float]


def work(way: str, rounds: int) -> None:
    """Make passes of each size; rank 0 prints bytes, median and least time, and CPU time, ms."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    run = distributed.all_reduce if way == "all-reduce" else BlueConnect(FACTORS).run
    rows = []
    for size in SIZES:
        values, times = torch.ones(size // 4), []
        for _ in range(1 + rounds):  # the first opens connections
            distributed.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            run(values)
            times.append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)))
        walls, cpus = zip(*times[1:], strict=True)
        rows.append((size, statistics.median(walls), min(walls), statistics.median(cpus)))
    if distributed.get_rank() == 0:
        print(json.dumps(rows), flush=True)
    distributed.barrier()
    os._exit(0)  # threads of gloo that still run would abort the process


def measured(made: Links, port: int, way: str, rounds: int) -> list[Row]:
    """The rows of rank 0."""
    count, options = made.topology.workers, ["--way", way, "--rounds", str(rounds)]
    workers = [
        subprocess.Popen(
            [*made.prefix(rank), sys.executable, __file__, "--work", *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **ENVIRONMENT, **environment(rank, count, port)},
        )
        for rank in range(count)
    ]
    outputs = [worker.communicate()[0] for worker in workers]
    return [(int(size), *times) for size, *times in json.loads(outputs[0])]


def predicted_ms(made: Links, mbit: int, way: str, size: int) -> float:
    """The time of a pass by the model of the links."""
    if way == "all-reduce":
        return float(network(made, mbit).all_reduce_ns(size)) / 1e6
    # The workers of a node share its link.
    bandwidths = (mbit, mbit) if made.topology.nodes == 1 else (WITHIN_MBIT, mbit / FACTORS[0])
    total, held = 0.0, size
    for workers, own_mbit in zip(FACTORS, bandwidths, strict=True):
        level = Network(workers, own_mbit * PAYLOAD / 1e3, LATENCY_US)
        total, held = total + 2 * float(level.gather_ns(held)) / 1e6, held // workers
    return total


def network(made: Links, mbit: int) -> Network:
    """The links as `stepscope whatif` is given them."""
    nodes, gbps = made.topology.nodes, mbit * PAYLOAD / 1e3
    per_node = made.topology.per_node if nodes > 1 else 1
    within = WITHIN_MBIT * PAYLOAD / 1e3
    return Network(made.topology.workers, gbps, LATENCY_US, per_node, within, LATENCY_US)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--way", choices=("all-reduce", "blueconnect"), default="all-reduce")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.way, args.rounds)
    print(
        "| links | Mbit/s | MiB | predicted, ms | measured, ms | error | least | its error "
        "| CPU of a worker, ms |"
    )
    print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
    port = _PORT
    for topology in TOPOLOGIES:
        if args.way == "blueconnect" and topology.workers != prod(FACTORS):
            continue
        with links(topology) as made:
            for mbit in BANDWIDTHS[topology.name]:
                made.shape(mbit, WITHIN_MBIT)
                port += 1
                for size, *times in measured(made, port, args.way, args.rounds):
                    predicted = predicted_ms(made, mbit, args.way, size)
                    print(row(topology.name, mbit, size, predicted, *times), flush=True)


def row(links: str, mbit: int, size: int, predicted: float, *times: float) -> str:
    """A line of the table: predicted, median and least time, and the CPU time, ms."""
    median, least, cpu = times
    cells = (
        f"{predicted:.1f} | {median:.1f} | {predicted / median - 1:+.1%} | {least:.1f} "
        f"| {predicted / least - 1:+.1%} | {cpu:.1f}"
    )
    return f"| {links} | {mbit} | {size / MIB:.0f} | {cells} |"


if __name__ == "__main__":
    main()
