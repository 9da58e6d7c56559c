"""A process of a job that trains as it is told on its standard input: `worker.py MODEL`.

A line of input is JSON, `{"way": ..., "warmup": ..., "steps": ...}`; rank 0 answers. `together` is
training without communication, in all workers at once and step by step.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from torch import distributed

sys.path.insert(0, str(Path(__file__).parents[2]))
from benchmarks.networked.models import make_task
from benchmarks.networked.runs import UNCHANGED
from benchmarks.networked.trainers import Trainer, make_trainer

from stepscope.models.calibration.timed import queued_ns

NAMES = ("steps_ns", "cpu_ns", "waited_ns", "optimizer_ns", "training_cpu_ns", "training_waited_ns")
Reading = tuple[int, ...]


def answer(trainer: Trainer, request: dict[str, Any]) -> dict[str, list[int]]:
    """The times of each step: see `benchmarks.networked.runs.Run`."""
    distributed.barrier()
    readings = []
    for _ in range(request["warmup"] + request["steps"]):
        readings.append(_reading(trainer))
        trainer.step()
        if request["way"] == UNCHANGED:
            distributed.barrier()
    readings.append(_reading(trainer))
    trainer.finish()
    distributed.barrier()
    steps = list(pairwise(readings))[request["warmup"] :]
    return {
        name: [after[column] - before[column] for before, after in steps] for column, name in enumerate(NAMES)
    }


def _reading(trainer: Trainer) -> Reading:
    """What `NAMES` says, so far."""
    waited = queued_ns()
    return (
        time.perf_counter_ns(),
        time.process_time_ns(),
        sum(waited.values()),
        trainer.optimizer_ns,
        time.thread_time_ns(),
        waited.get(threading.get_native_id(), 0),
    )


def main() -> None:
    """Answer requests until the input ends."""
    distributed.init_process_group("gloo")
    rank = distributed.get_rank()
    trainers: dict[str, Trainer] = {}
    for line in sys.stdin:
        request = json.loads(line)
        way = "alone" if request["way"] == UNCHANGED else request["way"]
        if way not in trainers:
            trainers[way] = make_trainer(way, make_task(sys.argv[1]))
        found = answer(trainers[way], request)
        if rank == 0:
            print(json.dumps(found), flush=True)
    sys.stdout.flush()
    os._exit(0)  # threads of gloo that still run would abort the process


if __name__ == "__main__":
    main()
