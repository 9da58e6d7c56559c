"""All-reduces by themselves on shaped links, next to the model of the network.

    python benchmarks/collective_times.py [--rounds N]

The workers of `network_accuracy.py`, its topologies and its bandwidths, but nothing is computed: by
this, what the model of a link misses is separated from what processes take from each other that
share cores. A line has the predicted time, the median measured one, and the CPU time of a worker.
Needs root, `ip` and `tc` (apt-get install iproute2).
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.networked.job import ENVIRONMENT
from benchmarks.networked.links import PAYLOAD, TOPOLOGIES, Links, environment, links
from benchmarks.networked.points import BANDWIDTHS, LATENCY_US, WITHIN_MBIT

from stepscope.whatif.parts.network import Network

MIB = 1 << 20
SIZES = (1 * MIB, 8 * MIB, 25 * MIB)
_PORT = 29571
Row = tuple[int, float, float]


def work(rounds: int) -> None:
    """All-reduce each size; rank 0 prints rows of bytes, and median wall and CPU time, ms."""
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    rows = []
    for size in SIZES:
        values, times = torch.ones(size // 4), []
        for _ in range(1 + rounds):  # the first opens connections
            distributed.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            distributed.all_reduce(values)
            times.append((1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)))
        rows.append((size, *(statistics.median(column) for column in zip(*times[1:], strict=True))))
    if distributed.get_rank() == 0:
        print(json.dumps(rows), flush=True)
    distributed.barrier()
    os._exit(0)  # threads of gloo that still run would abort the process


def measured(made: Links, port: int, rounds: int) -> list[Row]:
    """The rows of rank 0."""
    count = made.topology.workers
    workers = [
        subprocess.Popen(
            [*made.prefix(rank), sys.executable, __file__, "--work", "--rounds", str(rounds)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **ENVIRONMENT, **environment(rank, count, port)},
        )
        for rank in range(count)
    ]
    outputs = [worker.communicate()[0] for worker in workers]
    return [(int(size), wall, cpu) for size, wall, cpu in json.loads(outputs[0])]


def network(made: Links, mbit: int) -> Network:
    """The links as `stepscope whatif` is given them."""
    nodes, gbps = made.topology.nodes, mbit * PAYLOAD / 1e3
    per_node = made.topology.per_node if nodes > 1 else 1
    within = WITHIN_MBIT * PAYLOAD / 1e3
    return Network(made.topology.workers, gbps, LATENCY_US, per_node, within, LATENCY_US)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--work", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        work(args.rounds)
    print("| links | Mbit/s | MiB | predicted, ms | measured, ms | error | CPU of a worker, ms |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    port = _PORT
    for topology in TOPOLOGIES:
        with links(topology) as made:
            for mbit in BANDWIDTHS[topology.name]:
                made.shape(mbit, WITHIN_MBIT)
                port += 1
                for size, wall, cpu in measured(made, port, args.rounds):
                    predicted = float(network(made, mbit).all_reduce_ns(size)) / 1e6
                    cells = (
                        f"{predicted:.1f} | {wall:.1f} | {predicted / wall - 1:+.1%} | {cpu:.1f}"
                    )
                    print(f"| {topology.name} | {mbit} | {size / MIB:.0f} | {cells} |", flush=True)


if __name__ == "__main__":
    main()
