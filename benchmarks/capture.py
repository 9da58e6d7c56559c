"""The cost of recording: a GPT-2 and a ResNet without a tool, with torch.profiler, with stepscope.

    python benchmarks/capture.py [--rounds N] [--out capture.json]

Two questions, each about neighboring steps of one process, taken in turn so that a busy machine
slows both alike:

    while recording      torch.profiler alone | stepscope, both with record_shapes
    steps not recorded   no tool | warm-up passed | recording over

The stepscope steps are the real thing: the recorder that `stepscope run` attaches, its module
ranges and its optimizer watch. "Warm-up passed" has the recorder attached and waiting to record;
"recording over" has it after it wrote its file. Each figure is process CPU time and wall time per
step; ratios are the median over rounds of the ratio within a round, with its quartiles.
"""

import argparse
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers

from stepscope.record.manifest import Run
from stepscope.record.options import RecordOptions
from stepscope.record.session import Session

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_resnet import ResNet18

SETTLING_STEPS = 2
RECORDED_STEPS = 4
PLAIN_STEPS = 10
NEVER = 10**9


@dataclass
class Cost:
    """Seconds per step."""

    cpu: float
    wall: float


class Training:
    """A model with its optimizer and one fixed batch."""

    def __init__(self, model: torch.nn.Module, loss: Callable[[torch.nn.Module], torch.Tensor]):
        self.model, self.loss = model, loss
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(self) -> None:
        self.loss(self.model).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def gpt2() -> Training:
    config = transformers.GPT2Config(
        vocab_size=1000,
        n_positions=64,
        n_layer=4,
        n_embd=128,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    tokens = torch.randint(1000, (4, 64))
    model = transformers.GPT2LMHeadModel(config).train()
    return Training(model, lambda model: model(input_ids=tokens, labels=tokens).loss)


def resnet() -> Training:
    images, labels = torch.randn(4, 3, 64, 64), torch.randint(100, (4,))
    criterion = torch.nn.CrossEntropyLoss()
    return Training(ResNet18(width=32), lambda model: criterion(model(images), labels))


def measure(step: Callable[[], None], steps: int) -> Cost:
    """The mean of `steps` steps; the collector would charge one tool for another's garbage."""
    gc.collect()
    gc.disable()
    for _ in range(SETTLING_STEPS):  # what ran before has left caches and allocator its own way
        step()
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(steps):
        step()
    cost = Cost((time.process_time() - cpu) / steps, (time.perf_counter() - wall) / steps)
    gc.enable()
    return cost


def under_nothing(training: Training) -> Cost:
    return measure(training.step, PLAIN_STEPS)


def under_profiler(training: Training) -> Cost:
    profiler = torch.profiler.profile(record_shapes=True)
    profiler.start()
    cost = measure(training.step, RECORDED_STEPS)
    profiler.stop()
    return cost


def while_recording(training: Training) -> Cost:
    """The recorded steps of a session: its windows begin and end outside what is measured."""
    with attached(warmup=1, steps=SETTLING_STEPS + RECORDED_STEPS + 1) as session:
        training.step()  # observed; the window opens at its end
        cost = measure(training.step, RECORDED_STEPS)
    assert session.result
    assert session.result.steps_recorded
    return cost


def after_warmup(training: Training) -> Cost:
    """Attached and waiting, as in the steps between the early and the main window."""
    with attached(warmup=NEVER, steps=1):
        for _ in range(2):
            training.step()
        return measure(training.step, PLAIN_STEPS)


def after_recording(training: Training) -> Cost:
    with attached(warmup=1, steps=1) as session:
        for _ in range(2):
            training.step()
        assert session.result
        assert session.result.outcome == "complete"
        return measure(training.step, PLAIN_STEPS)


class attached:
    """A session as `stepscope run` has it, for the length of a block."""

    def __init__(self, warmup: int, steps: int) -> None:
        self._folder = tempfile.TemporaryDirectory()
        run = Run(sys.argv, RecordOptions(warmup=warmup, steps=steps))
        self._session = Session(run, Path(self._folder.name, "run.stepscope"))

    def __enter__(self) -> Session:
        self._session.attach()
        return self._session

    def __exit__(self, *error: object) -> None:
        from stepscope.record.session import Ending

        self._session.finish(Ending())
        self._folder.cleanup()


def interleave(
    training: Training, variants: dict[str, Callable[[Training], Cost]], rounds: int
) -> dict[str, list[Cost]]:
    """Every variant once per round, each round beginning with another one."""
    names = list(variants)
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for turn in range(-1, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            cost = variants[name](training)
            if turn >= 0:
                costs[name].append(cost)
    return costs


def compare(costs: dict[str, list[Cost]], base: str) -> dict[str, dict[str, object]]:
    """Each variant against `base`: steps per second, and ratios within rounds."""
    table = {}
    for name, measured in costs.items():
        row: dict[str, object] = {"steps_per_second": 1 / statistics.median(c.wall for c in measured)}
        for clock in ("cpu", "wall"):
            ratios = [
                getattr(mine, clock) / getattr(theirs, clock)
                for mine, theirs in zip(measured, costs[base], strict=True)
            ]
            row[f"{clock}_ratio_quartiles"] = statistics.quantiles(ratios, n=4)
            row[f"{clock}_min_ratio"] = min(getattr(c, clock) for c in measured) / min(
                getattr(c, clock) for c in costs[base]
            )
        table[name] = row
    return table


QUESTIONS = {
    "while recording": ({"torch.profiler": under_profiler, "stepscope": while_recording}, "torch.profiler"),
    "steps not recorded": (
        {
            "no tool": under_nothing,
            "no tool again": under_nothing,
            "warm-up passed": after_warmup,
            "recording over": after_recording,
        },
        "no tool",
    ),
}


def show(model: str, question: str, table: dict[str, dict[str, object]]) -> None:
    print(f"\n{model}: {question}")
    print(f"  {'':18} {'steps/s':>8}   {'CPU ratio (quartiles)':26} {'of minima':>9}   wall ratio")
    for name, row in table.items():
        low, middle, high = row["cpu_ratio_quartiles"]
        wall = row["wall_ratio_quartiles"][1]
        print(
            f"  {name:18} {row['steps_per_second']:8.1f}   {middle:.4f} ({low:.4f} … {high:.4f})"
            f"   {row['cpu_min_ratio']:9.4f}   {wall:.4f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()

    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    results = {}
    for model, make in {"GPT-2": gpt2, "ResNet": resnet}.items():
        training = make()
        for _ in range(5):
            training.step()
        for question, (variants, base) in QUESTIONS.items():
            table = compare(interleave(training, variants, args.rounds), base)
            results[f"{model}: {question}"] = table
            show(model, question, table)
    if args.out:
        about = {
            "machine": platform.processor() or platform.machine(),
            "cpu_count": os.cpu_count(),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "rounds": args.rounds,
            "threads": args.threads,
        }
        args.out.write_text(json.dumps({**about, "results": results}, indent=1))


if __name__ == "__main__":
    main()
