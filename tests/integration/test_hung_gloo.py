"""Real jobs over gloo that hang: what their flight recorders dump names the cause."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from stepscope.models.ranks.hangs import HangReport, hang_of
from stepscope.read.flight_recorder import read_dump

RANKS = 3
JOB = """
import os, sys, threading, time
from datetime import timedelta
import torch, torch.distributed as dist
import torch._dynamo, torch._inductor.standalone_compile  # a dump imports it: once for all ranks
from torch._C._distributed_c10d import _dump_fr_trace

def missing(rank, group):
    if rank != 1:
        dist.all_reduce(torch.ones(4))

def operations(rank, group):
    if rank == 2:
        dist.broadcast(torch.ones(4), 2)
        dist.barrier()
    else:
        dist.barrier()

def groups(rank, group):
    if rank == 0:
        dist.all_reduce(torch.ones(4), group=group)
    else:
        dist.all_reduce(torch.ones(4))

def healthy(rank, group):
    dist.all_reduce(torch.ones(4))
    dist.all_gather([torch.ones(4) for _ in range(3)], torch.ones(4))

def run(name, rank, folder):
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/{name}.store", 3)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=3, timeout=timedelta(seconds=600))
    group = dist.new_group([0, 1])
    dist.all_reduce(torch.ones(2))
    if rank < 2:
        dist.all_reduce(torch.ones(2), group=group)
    threading.Thread(target=globals()[name], args=(rank, group), daemon=True).start()
    time.sleep(6)  # longer than a call in flight
    os.makedirs(f"{folder}/{name}", exist_ok=True)
    with open(f"{folder}/{name}/trace_rank_{rank}", "wb") as file:
        file.write(_dump_fr_trace())
    time.sleep(1)
    os._exit(0)

children = []
for name in ("missing", "operations", "groups", "healthy"):
    for rank in range(3):
        if (child := os.fork()) == 0:
            run(name, rank, sys.argv[1])
        children.append(child)
for child in children:
    os.waitpid(child, 0)
"""


def test_hangs_of_real_jobs_are_named(tmp_path: Path) -> None:
    script = tmp_path / "job.py"
    script.write_text(JOB)
    environment = {**os.environ, "TORCH_FR_BUFFER_SIZE": "2000"}
    subprocess.run([sys.executable, str(script), str(tmp_path)], check=True, timeout=300, env=environment)

    def report(name: str) -> HangReport:
        return hang_of([read_dump(tmp_path / name / f"trace_rank_{rank}") for rank in range(RANKS)])

    def line(text: str) -> int:
        return JOB.splitlines().index(text) + 1

    place = f"{script}:{line('        dist.all_reduce(torch.ones(4))')}"
    found = report("missing")
    assert found.sentence.startswith(
        "Rank 1 has not called all_reduce #2 (4 Float) of default_pg, in which ranks 0, 2 wait at "
        f"{place} (missing)"
    )
    found = report("operations")
    assert found.sentence.startswith("Rank 2 calls broadcast #2"), found.sentence
    assert "where ranks 0-1 call barrier #2" in found.sentence
    found = report("groups")
    assert found.sentence.startswith("Ranks wait for each other:"), found.sentence
    assert "the same operation on different groups" in found.sentence
    assert not report("healthy").is_hang
