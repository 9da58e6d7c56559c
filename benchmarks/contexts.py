"""The cost of collecting contexts, compared with torch.profiler: GPT-2 and ResNet, tiny and large.

    python benchmarks/contexts.py [--rounds N] [--iterations N] [--out contexts.json]

Time: CPU time of a training step with no tool, with operators alone, with Python and modules as
`stepscope run --contexts` collects them, with C++ frames too (`--native`), and under torch.profiler
(operators alone, and with Python stacks). The variants take turns in one process, every round
beginning with another one, so that load affects all equally; a figure is the median over rounds of
the ratio within a round, with its quartiles. The time to stop torch.profiler is shown separately.
`own` is the collector's time as it measures it, in percent of the step: it excludes PyTorch's time
for calling the collector, and the machine's noise.

The C library keeps freed memory (see `_KEPT`). Normally it returns some in every step and gets it
again, some 2 µs per page, an amount that varies with small blocks in between: `--usual-heap` shows
how much a step without a tool then varies. `faults` are page faults per step.

Memory: growth of the process between iteration 200 and N of the tiny GPT-2.
"""

import argparse
import gc
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from train_resnet import ResNet18

from stepscope.record.contexts import native_build as build
from stepscope.record.contexts.context_options import ContextOptions
from stepscope.record.contexts.native_collector import NativeCollector

_KEPT = {"MALLOC_TRIM_THRESHOLD_": str(8 << 30), "MALLOC_MMAP_MAX_": "0", "MALLOC_TOP_PAD_": str(64 << 20)}
WARM_UP_ITERATIONS = 200
SETTLING_STEPS = 2
STEPS = {"tiny": 6, "large": 2}


class Training:
    """A model with its optimizer and one fixed batch."""

    def __init__(self, model: torch.nn.Module, loss: Callable[[torch.nn.Module], torch.Tensor]):
        self.model, self.loss = model, loss
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step(self) -> None:
        self.loss(self.model).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def gpt2(width: int, batch: int, length: int) -> Training:
    config = transformers.GPT2Config(
        vocab_size=1000,
        n_positions=length,
        n_layer=4,
        n_embd=width,
        n_head=4,
        bos_token_id=0,
        eos_token_id=0,
        loss_type="ForCausalLM",
    )
    tokens = torch.randint(1000, (batch, length))
    model = transformers.GPT2LMHeadModel(config).train()
    return Training(model, lambda model: model(input_ids=tokens, labels=tokens).loss)


def resnet(width: int, batch: int, size: int) -> Training:
    images, labels = torch.randn(batch, 3, size, size), torch.randint(100, (batch,))
    criterion = torch.nn.CrossEntropyLoss()
    return Training(ResNet18(width=width), lambda model: criterion(model(images), labels))


MODELS = {
    ("GPT-2", "tiny"): lambda: gpt2(128, 4, 64),
    ("ResNet", "tiny"): lambda: resnet(32, 4, 64),
    ("GPT-2", "large"): lambda: gpt2(384, 4, 128),
    ("ResNet", "large"): lambda: resnet(64, 6, 96),
}


@dataclass
class Cost:
    """Seconds of CPU time of a step, of stopping the tool, and in a step by its own count; page
    faults of a step."""

    step: float
    stop: float = 0.0
    own: float | None = None
    faults: float = 0.0


@dataclass
class Bench:
    """One model, and how many of its steps make one measurement."""

    training: Training
    steps: int

    def measure(self, when_settled: Callable[[], None] = lambda: None) -> Cost:
        """The median step. The first ones, from the same line of the program so that all contexts
        have been met, are let pass."""
        gc.collect()
        gc.disable()
        costs = []
        for turn in range(SETTLING_STEPS + self.steps):
            if turn == SETTLING_STEPS:
                when_settled()
                faults = page_faults()
            begun = time.process_time()
            self.training.step()
            costs.append(time.process_time() - begun)
        faults = page_faults() - faults
        gc.enable()
        return Cost(statistics.median(costs[SETTLING_STEPS:]), faults=faults / self.steps)

    def plain(self) -> Cost:
        return self.measure()

    def contexts(self, **options: bool) -> Cost:
        extension = build.load(torch)
        collector = NativeCollector(extension, ContextOptions(device=False, **options), torch)
        collector.start()
        before: list[float] = []
        cost = self.measure(lambda: before.append(own_time(collector)))
        cost.own = (own_time(collector) - before[0]) / self.steps
        begun = time.process_time()
        collector.stop()
        collector.content(True)
        collector.release()
        cost.stop = time.process_time() - begun
        return cost

    def profiler(self, **options: bool) -> Cost:
        activities = [torch.profiler.ProfilerActivity.CPU]
        profiler = torch.profiler.profile(activities=activities, **options)
        profiler.start()
        cost = self.measure()
        begun = time.process_time()
        profiler.stop()
        cost.stop = time.process_time() - begun
        return cost


def page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def own_time(collector: NativeCollector) -> float:
    return json.loads(collector.content(False) or b"")["totals"]["collector_ns"] / 1e9


VARIANTS: dict[str, Callable[[Bench], Cost]] = {
    "no tool": Bench.plain,
    "no tool again": Bench.plain,
    "operators": lambda bench: bench.contexts(python=False, modules=False),
    "--contexts": lambda bench: bench.contexts(),
    "--contexts --native": lambda bench: bench.contexts(native=True),
    "torch.profiler": lambda bench: bench.profiler(),
    "torch.profiler, stacks": lambda bench: bench.profiler(with_stack=True),
}


def interleave(bench: Bench, rounds: int) -> dict[str, list[Cost]]:
    names = list(VARIANTS)
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    for turn in range(-1, rounds):
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            cost = VARIANTS[name](bench)
            if turn >= 0:
                costs[name].append(cost)
    return costs


def compare(costs: dict[str, list[Cost]]) -> dict[str, dict[str, Any]]:
    table = {}
    plain = [cost.step for cost in costs["no tool"]]
    for name, measured in costs.items():
        ratios = [cost.step / base for cost, base in zip(measured, plain, strict=True)]
        table[name] = {
            "step_ms": 1e3 * statistics.median(cost.step for cost in measured),
            "ratio_quartiles": statistics.quantiles(ratios, n=4),
            "ratio_of_minima": min(cost.step for cost in measured) / min(plain),
            "stop_ms": 1e3 * statistics.median(cost.stop for cost in measured),
            "own_percent": own_percent(measured),
            "faults": statistics.median(cost.faults for cost in measured),
        }
    return table


def own_percent(measured: list[Cost]) -> float | None:
    shares = [100 * cost.own / cost.step for cost in measured if cost.own is not None]
    return statistics.median(shares) if shares else None


def show(title: str, table: dict[str, dict[str, Any]]) -> None:
    print(f"\n{title}")
    heads = f"{'ms/step':>8}   {'CPU ratio (quartiles)':26}{'of minima':>9}"
    print(f"  {'':24}{heads}  stop, ms  faults  own, %")
    for name, row in table.items():
        low, middle, high = row["ratio_quartiles"]
        print(
            f"  {name:24}{row['step_ms']:8.2f}   {middle:.3f} ({low:.3f} … {high:.3f})".ljust(63)
            + f"{row['ratio_of_minima']:7.3f}  {row['stop_ms']:8.1f}{row['faults']:8.0f}"
            + (f"{row['own_percent']:8.2f}" if row["own_percent"] is not None else "")
        )


# -- memory, each variant in a separate process


def grow(variant: str, iterations: int) -> dict[str, float]:
    """Iterate with one tool; return the growth of the process after warm-up."""
    training = gpt2(32, 1, 16)
    if variant == "contexts":
        collector = NativeCollector(build.load(torch), ContextOptions(device=False), torch)
        collector.start()
    elif variant == "torch.profiler":
        profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
        profiler.start()
    for _ in range(WARM_UP_ITERATIONS):
        training.step()
    gc.collect()
    warm = resident_mib()
    for _ in range(iterations - WARM_UP_ITERATIONS):
        training.step()
    gc.collect()
    return {"iterations": iterations, "growth_mib": resident_mib() - warm}


def resident_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def memory(iterations: int) -> dict[str, dict[str, float]]:
    table = {}
    # torch.profiler would need tens of gigabytes for them all; its growth is the same each time
    for variant, turns in (
        ("no tool", iterations),
        ("contexts", iterations),
        ("torch.profiler", iterations // 20),
    ):
        command = [sys.executable, __file__, "--grow", variant, "--iterations", str(turns)]
        usual = {name: value for name, value in os.environ.items() if name not in _KEPT}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=usual)
        table[variant] = json.loads(done.stdout.splitlines()[-1])
        row = table[variant]
        print(f"  {variant:16} {row['growth_mib']:9.1f} MiB over {row['iterations']} iterations")
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--steps", type=int, help=f"of a measurement; by default, by size {STEPS}")
    parser.add_argument("--iterations", type=int, default=20_000)
    parser.add_argument("--only", choices=["time", "memory"])
    parser.add_argument("--model", choices=["GPT-2", "ResNet"], help="both by default")
    parser.add_argument("--size", choices=list(STEPS), help="of the models; both by default")
    parser.add_argument("--usual-heap", action="store_true", help="see above")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--grow", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if not (arguments.grow or arguments.usual_heap) and _KEPT.items() - os.environ.items():
        os.execve(sys.executable, [sys.executable, *sys.argv], os.environ | _KEPT)
    torch.set_num_threads(1)
    if arguments.grow:
        print(json.dumps(grow(arguments.grow, arguments.iterations)), flush=True)
        os._exit(0)  # the end of torch.profiler is not measured
    found: dict[str, Any] = {"machine": platform.platform(), "torch": torch.__version__}
    if arguments.only != "memory":
        for (model, size), make in MODELS.items():
            if arguments.size not in (None, size) or arguments.model not in (None, model):
                continue
            bench = Bench(make(), arguments.steps or STEPS[size])
            found[f"{model}, {size}"] = table = compare(interleave(bench, arguments.rounds))
            show(f"{model}, {size}", table)
    if arguments.only != "time":
        print("\nmemory, GPT-2, tiny: growth after warm-up")
        found["memory"] = memory(arguments.iterations)
    if arguments.out:
        arguments.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
