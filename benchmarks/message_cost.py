"""The CPU time that P3's messages take in Python, on this machine.

    python benchmarks/message_cost.py [--messages N]

Two processes exchange messages of a few bytes as the reference of P3 does (`networked/mesh.py`:
threads that send and receive over TCP), on the loopback device. Printed is the CPU time of one
process over the messages that it sent and received.
"""

import argparse
import sys
import threading
from functools import partial
from pathlib import Path
from time import process_time

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from benchmarks.networked.mesh import Mesh, Message
from torch import distributed

from stepscope.models.calibration.measure import between_two_processes

_VALUES, _PAUSE_S, _ROUNDS = 16, 0.001, 5


def exchange(count: int) -> list[float]:
    """CPU time of each message, us, in a few rounds."""
    mesh, done = Mesh(), threading.Semaphore(0)
    mesh.start(lambda kind, number, size: torch.empty(size), lambda *_: done.release())
    values = torch.ones(_VALUES)
    found = []
    for _ in range(_ROUNDS):
        begin = process_time()
        for number in range(count):
            mesh.send(Message(number, 0, 1 - mesh.rank, values))
            threading.Event().wait(_PAUSE_S)  # as gradients come, one after the other
        for _ in range(count):
            done.acquire()
        found.append((process_time() - begin) / (2 * count) * 1e6)
    distributed.barrier()  # closing drops what the other one still waits for
    mesh.close()
    return found


def main() -> None:
    """Print the time."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--messages", type=int, default=400)
    found = between_two_processes(partial(exchange, parser.parse_args().messages))
    print(f"{min(found):.0f} to {max(found):.0f} us a message sent or received")


if __name__ == "__main__":
    main()
