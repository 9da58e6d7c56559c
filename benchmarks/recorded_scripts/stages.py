"""A training loop that times its own stages by hand, for models.py."""

import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from models import MODELS

torch.set_num_threads(1)
torch.manual_seed(0)


def main() -> None:
    """Train the model named on the command line and write the times of each step's stages, ms."""
    name, steps, out = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    parts = MODELS[name]()
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
    Path(out).write_text(json.dumps(times))


main()
