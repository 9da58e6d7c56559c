"""A training loop that times its own stages by hand, for models.py.

In some of its last steps it times itself after everything that stepscope left in this process is
removed. All steps do the same work in one loop: where a list is kept in another place, memory is
reused in another order, and a stage may take 20 % longer.
"""

import gc
import json
import sys
import time
from itertools import pairwise
from pathlib import Path

import torch
from models import MODELS

torch.set_num_threads(1)
torch.set_flush_denormal(True)  # the same work in every step: gradients become small
torch.manual_seed(0)


def main() -> None:
    """Train the model named on the command line and write the times of each step's stages, ms."""
    name, watched, alone, out = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    parts = MODELS[name]()
    times = []
    for step in range(watched + alone):
        if step == watched:
            remove_hooks()
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
    Path(out).write_text(json.dumps({"watched": times[:watched], "alone": times[watched:]}))


def remove_hooks() -> None:
    """Remove every hook of stepscope in this process, if it records."""
    if "stepscope" not in sys.modules:
        return
    from stepscope.record.session import Session

    for session in [found for found in gc.get_objects() if type(found) is Session]:
        session.detach()


main()
