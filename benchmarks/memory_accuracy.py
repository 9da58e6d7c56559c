"""Peak memory predicted from one recording against peaks that were measured, on the CPU.

    python benchmarks/memory_accuracy.py [--model MODEL] [--folder DIR]

Each model of `memory_scripts/train.py` is recorded once with `stepscope run --memory`, and once
more with each change made to the script. The peak is the greatest total of torch's CPU allocator,
in bytes, in the two recorded steps. Prints the table of docs/evidence/accuracy/peak_memory.md.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import stepscope
from stepscope.models.memory.recorded_memory import recorded_memory
from stepscope.models.whatif import CHANGES, parse_request
from stepscope.models.whatif.prediction import predict_memory

SCRIPT = Path(__file__).parent / "memory_scripts" / "train.py"
BATCH = 8
BLOCKS = {"gpt": "blocks.{}", "resnet": "layers.{}", "lstm": "layers.{}"}
COUNT = {"gpt": 4, "resnet": 6, "lstm": 3}
NAMES = {"gpt": "GPT-2-like", "resnet": "ResNet-50-like", "lstm": "LSTM"}


def changes(model: str) -> list[tuple[str, int, str, str]]:
    """Name, batch size and change of the script, and the same as `whatif` has it."""
    found = [("batch size", size, "", f"batch_size:factor={size / BATCH}") for size in (4, 12, 16, 32)]
    for number in range(COUNT[model]):
        path = BLOCKS[model].format(number)
        found.append(("checkpoint one block", BATCH, f"checkpoint:{path}", f"checkpoint:module={path}"))
    every = BLOCKS[model].format("?")
    found.append(("checkpoint all blocks", BATCH, f"checkpoint:{every}", f"checkpoint:module={every}"))
    found.append(("autocast", BATCH, "autocast", "amp"))
    found.append(("stateless optimizer", BATCH, "stateless", "stateless_optimizer"))
    if model == "gpt":  # the others take minutes to compile, and mostly call libraries
        found.append(("compile", BATCH, "compile", "compile"))
    return found


def record(folder: Path, model: str, batch: int, change: str) -> stepscope.Trace:
    """The capture of one run, made unless it is there."""
    path = folder / re.sub(r"\W", "_", f"{model}_{batch}_{change}").strip("_")
    path = path.with_suffix(".stepscope")
    if not path.exists():
        command = [
            sys.executable,
            "-c",
            "from stepscope.faces.terminal import main; main()",
            "run",
            "--memory",
            "--warmup=2",
            "--steps=2",
            "-o",
            str(path),
            str(SCRIPT),
            model,
            str(batch),
            change,
        ]
        subprocess.run(command, check=True, capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return stepscope.open(path, cache=False)


def peak(trace: stepscope.Trace) -> int:
    return int(trace["memory"]["allocated_bytes"].max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", choices=[*BLOCKS])
    parser.add_argument("--folder", type=Path, help="keep the captures here, and use those there")
    arguments = parser.parse_args()
    folder = arguments.folder or Path(tempfile.mkdtemp())
    folder.mkdir(exist_ok=True, parents=True)
    errors: list[float] = []
    print("| model | change | predictions | mean error | largest error |\n|---|---|---|---|---|")
    for model in [arguments.model] if arguments.model else BLOCKS:
        rows: dict[str, list[float]] = {}
        memory = recorded_memory(record(folder, model, BATCH, ""))
        for name, batch, change, request in changes(model):
            predicted = predict_memory(memory, [parse_request(request, CHANGES)]).predicted_bytes
            measured = peak(record(folder, model, batch, change))
            rows.setdefault(name, []).append(predicted / measured - 1)
        for name, found in rows.items():
            sizes = [abs(one) for one in found]
            errors += sizes
            print(
                f"| {NAMES[model]} | {name} | {len(found)} | {sum(sizes) / len(found):.2%} "
                f"| {max(found, key=abs):+.2%} |",
                flush=True,
            )
    print(
        f"\n{len(errors)} predictions, mean error {sum(errors) / len(errors):.2%}, largest {max(errors):.2%}"
    )


if __name__ == "__main__":
    main()
