"""Whether the bill of a watched run has what its script loses, of losses that the script times by hand.

    python benchmarks/run_bill.py [LOSS...]        # five minutes for all of them on an idle machine

What the bill says of a loss, by its cause and line, should be within 5 % of the script's own time.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from watched_slowness import GLOO, HEAP, JAX, Kind, has_line, watched

from stepscope.facts.watched import bill_of, slow_rank
from stepscope.read.watched_run import WatchedRun

STEPS, ENOUGH = 400, 0.05  # of the loss
LOST = """
import atexit
from stepscope.record.run_shares.activity_log import ActivityLog
logs = []  # of the watch, whose own time is no loss
def now_s():
    logs.extend([] if logs else [found for found in gc.get_objects() if isinstance(found, ActivityLog)][:1])
    return time.perf_counter() - sum(1e-9 * log.excluded_ns for log in logs)
class Lost:
    seconds = 0.0
    def __enter__(self): self.began = now_s()
    def __exit__(self, *error): self.seconds += now_s() - self.began
lost = Lost()
def since_start():
    ticks = int(open("/proc/self/stat").read().rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
atexit.register(lambda: open(f"truth{os.environ.get('RANK', '0')}", "w").write(str(lost.seconds)))
"""
VALIDATE = """
def validate():
    with lost:
        model.eval()
        with torch.no_grad(): busy(0.1)
        model.train()
"""
COMPILED = """
compiled, seen = step, {8}  # the first shape is compiled in the first step, which is part of the start
def step(weights, batch):
    if len(batch) in seen: return compiled(weights, batch)
    seen.add(len(batch))
    with lost: return compiled(weights, batch)
"""

TRAINER = """
import gc, os, time, torch
from transformers import Trainer, TrainingArguments
torch.set_num_threads(1)
{setup}
class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20)))
    def forward(self, x, labels=None): return {{"loss": self.layers(x).square().mean()}}
data = [{{"x": torch.randn(256), "labels": torch.zeros(1)}}] * {steps}
options = dict(save_strategy="steps", save_steps=20, save_total_limit=2, eval_strategy="steps", eval_steps=40)
arguments = TrainingArguments("out", per_device_train_batch_size=1, num_train_epochs=1, report_to=[],
                              use_cpu=True, disable_tqdm=True, **options)
Trainer(Model(), arguments, train_dataset=data, eval_dataset=data[:200]).train()
"""
LIGHTNING = """
import gc, lightning, os, time, torch
from lightning.pytorch.callbacks import ModelCheckpoint
torch.set_num_threads(1)
{setup}
class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20)))
    def training_step(self, batch, index): return self.layers(batch).square().mean()
    def configure_optimizers(self): return torch.optim.Adam(self.parameters())
shown = dict(enable_progress_bar=False, enable_model_summary=False, logger=False, accelerator="cpu")
saves = ModelCheckpoint("saved", every_n_train_steps=20)
trainer = lightning.Trainer(max_epochs=1, callbacks=[saves], **shown)
trainer.fit(Model(), torch.utils.data.DataLoader(torch.randn({steps}, 256)))
"""
ACCELERATE = """
import gc, os, time, torch
from accelerate import Accelerator
torch.set_num_threads(1)
{setup}
accelerator = Accelerator(cpu=True)
model = torch.nn.Sequential(*(torch.nn.Linear(256, 256) for _ in range(20)))
model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
for now in range({steps}):
    loss = model(torch.randn(1, 256)).square().mean()
    optimizer.zero_grad()
    accelerator.backward(loss)
    optimizer.step()
    if now % 20 == 19: accelerator.save_state("saved")
"""


def all_of(holder: str, name: str) -> str:
    """Times each call of a method of a library, its own work around what it calls included."""
    around = "lambda call: lambda *args, **more: (lost.__enter__(), call(*args, **more), lost.__exit__())[1]"
    return f"{holder}.{name} = ({around})({holder}.{name})"


def every(steps: int, statement: str) -> str:
    return f"\n    if now % {steps} == {steps} - 1:\n        with lost: {statement}"


LOSSES = {
    "checkpoints": Kind(
        "checkpoints", "torch.save(", setup="state = torch.ones(1 << 24)",
        after=every(20, "torch.save(state, 'checkpoint.pt')"),
    ),
    "evaluation": Kind("evaluation", "no_grad", setup=VALIDATE, after="if now % 20 == 0: validate()"),
    "garbage collection": Kind(
        "garbage collection", "gc.collect()", setup=HEAP, after=every(10, "gc.collect()")
    ),
    "slow collate": Kind("waiting for data", decode="with lost: busy(0.01)"),
    "logging each step": Kind("", "sum(", after="with lost: sum(range(300_000))"),
    "writing to disk": Kind(
        "", "os.fsync(", setup="log = open('log', 'wb', 0)",
        after=every(5, "[(log.write(bytes(1 << 18)), os.fsync(log.fileno())) for _ in range(10)]"),
    ),
    "large copies": Kind("", "clone()", setup="big = torch.zeros(1 << 25)", after=every(10, "big.clone()")),
    "start": Kind("start", setup="time.sleep(5)", after="\n    if now == 0: lost.seconds = since_start()"),
    "longer sequences": Kind(
        "", "sum(", after="\n    if now >= 300:\n        with lost: sum(range(2_000_000))"
    ),
    "JAX: compilation": Kind("compilation", "compiled(", JAX, batch="8 + number // 20", setup=COMPILED),
    "JAX: saving": Kind(
        "", "np.save(", JAX, setup="import numpy as np",
        loop=every(20, "np.save('weights.npy', np.zeros(1 << 23))"),
    ),
    "JAX: evaluation": Kind(
        "", "sum(", JAX, setup="def validate(): sum(range(4_000_000))", loop=every(20, "validate()")
    ),
    "Trainer: checkpoints": Kind("checkpoints", "", TRAINER, setup=all_of("Trainer", "_save_checkpoint")),
    "Trainer: evaluation": Kind("evaluation", "", TRAINER, setup=all_of("Trainer", "evaluate")),
    "Lightning: checkpoints": Kind(
        "checkpoints", "", LIGHTNING, setup=all_of("ModelCheckpoint", "_save_topk_checkpoint")
    ),
    "Accelerate: checkpoints": Kind(
        "checkpoints", "", ACCELERATE, setup=all_of("Accelerator", "save_state")
    ),
    "2 ranks: a slow peer": Kind(
        "rank 1", rank=1, ranks=2, setup=GLOO, loop="with lost: time.sleep(0.01 * rank)"
    ),
}  # fmt: skip


def billed(runs: list[WatchedRun]) -> Iterator[tuple[str, str, float]]:
    """Cause, place and seconds of all that a bill names."""
    bill = bill_of(runs[0])
    for named in (*bill.losses, *bill.slow, *bill.lines):
        yield named.cause, named.where, named.lost_s
    if slow := slow_rank(runs):
        yield f"rank {slow.rank}", "", 1e-3 * slow.lost_ms * (slow.last - slow.first + 1)


def errors(kind: Kind, folder: Path) -> list[tuple[str, float]]:
    """What the bill names with the cause and line of a loss, and how far that is from the truth."""
    runs = watched(replace(kind, setup=LOST + kind.setup), folder, STEPS)
    text = (folder / "train.py").read_text()
    truth_s = float((folder / f"truth{kind.rank or 0}").read_text())
    named = [
        (f"{cause} {where}: {lost_s:.3g} of {truth_s:.3g} s", lost_s / truth_s - 1)
        for cause, where, lost_s in billed(runs)
        if re.search(kind.cause, cause) and has_line(kind.where, where, text)
    ]
    return sorted(named, key=lambda error: abs(error[1])) or [("nothing", -1.0)]


def main() -> None:
    """Print what is billed for each loss, the nearest first, and how many are right."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("losses", nargs="*", metavar="LOSS")
    rights = []
    for name in parser.parse_args().losses or LOSSES:
        with tempfile.TemporaryDirectory() as folder:
            named = errors(LOSSES[name], Path(folder))
        rights.append(abs(named[0][1]) <= ENOUGH)
        said = "; ".join(f"{text} ({error:+.1%})" for text, error in named)
        print(f"{'right' if rights[-1] else 'WRONG'}: {name}: {said}", flush=True)
    print(f"{sum(rights)} of {len(rights)} within {ENOUGH:.0%}")


if __name__ == "__main__":
    main()
