"""A training loop that times its own stages by hand, for models.py.

It writes the times of its steps, and of as many more steps as `--alone` says after everything that
stepscope left in this process is removed.
"""

import gc
import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from models import MODELS, Parts

torch.set_num_threads(1)
torch.manual_seed(0)


def main() -> None:
    """Train the model named on the command line and write the times of each step's stages, ms."""
    name, watched, alone, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    parts = MODELS[name]()
    times = {"watched": timed_steps(parts, watched)}
    remove_hooks()
    times["alone"] = timed_steps(parts, alone)
    Path(out).write_text(json.dumps(times))


def timed_steps(parts: Parts, steps: int) -> list[list[float]]:
    """CPU time of the stages of each step, ms."""
    times = []
    for _ in range(steps):
        moments = [time.thread_time()]
        batch = parts.batch()
        moments.append(time.thread_time())
        loss = parts.loss(batch)
        moments.append(time.thread_time())
        parts.zero()
        loss.backward()
        moments.append(time.thread_time())
        parts.step()
        moments.append(time.thread_time())
        times.append([1e3 * (end - begin) for begin, end in pairwise(moments)])
    return times


def remove_hooks() -> None:
    """Remove every hook of stepscope in this process, if it records."""
    if "stepscope" not in sys.modules:
        return
    from stepscope.capture.session import Session

    for session in [found for found in gc.get_objects() if isinstance(found, Session)]:
        session.detach()


main()
