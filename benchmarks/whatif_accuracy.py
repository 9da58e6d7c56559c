"""Predicted against measured on this machine's CPU: each change made to a real training script.

    python benchmarks/whatif_accuracy.py [--part PART] [--out FILE]

Every line is one `stepscope verify`: the script recorded once, the prediction made from that and
from the machine's calibration, then runs without and with the change in turn, each in a fresh
process, on one thread. `ddp`, `compress` (of its gradients), `zero` and `fsdp` train two processes
in separate network namespaces, joined by a veth pair that tc shapes to each bandwidth; that
needs root, `ip` and `tc` (apt-get install iproute2). Without them the two meet on the loopback
device, at whatever that gives. A part takes up to five minutes.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

SCRIPTS = Path(__file__).parent / "whatif_scripts"
BANDWIDTHS_MBIT = (500, 1000, 4000)
# Of a frame of 1514 bytes, which tc counts, TCP over IPv4 with time stamps carries 1448.
PAYLOAD = 1448 / 1514
# A page that is touched first costs microseconds in a virtual machine. Freed memory stays with the
# process, as Intel's launcher for training on CPUs has it by another allocator.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 36),
    "MALLOC_TOP_PAD_": str(1 << 26),
}

# What a processor without them is like: oneDNN then computes in 16 bits by way of 32.
NO_BFLOAT16 = {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}


@dataclass(frozen=True)
class Line:
    """One line of the table: a change of a script, and words before its processes' commands."""

    part: str
    name: str
    change: str
    script: str
    prefix: str = ""
    batch: int = 4
    variables: Mapping[str, str] = field(default_factory=dict)


LINES = (
    Line("fused", "GPT-2, AdamW", "fused_optimizer", "gpt2", batch=1),
    Line("fused", "BERT, Adam", "fused_optimizer", "bert", batch=1),
    Line("amp", "GPT-2", "amp", "gpt2"),
    Line("amp", "BERT", "amp", "bert"),
    Line("amp", "ResNet-18", "amp", "resnet", batch=8),
    Line("amp", "GPT-2, no bfloat16 instructions", "amp", "gpt2", variables=NO_BFLOAT16),
    Line("dataloader", "images, 2 workers", "dataloader:workers=2", "images", batch=16),
)
TOGETHER = {
    "ddp": "ddp:workers=2,{network}",
    "compress": "ddp:workers=2,{network}+compress",
    "zero": "zero:workers=2,{network}",
    "fsdp": "fsdp:workers=2,unit=transformer.h.*,{network}",
}


@contextmanager
def link(mbit: int) -> Iterator[tuple[str, dict[str, str]]]:
    """Two network namespaces joined at a bandwidth: the prefix and the variables for a process."""
    names = [f"stepscope{os.getpid()}-{n}" for n in (0, 1)]
    try:
        for name in names:
            shell("ip netns add", name)
        shell("ip link add name lan netns", names[0], "type veth peer name lan netns", names[1])
        for number, name in enumerate(names, 1):
            shell(f"ip -n {name} addr add 10.77.0.{number}/24 dev lan")
            shell(f"ip -n {name} link set lan up")
            shell(f"ip -n {name} link set lo up")
            shape = f"rate {mbit}mbit burst 128kb latency 200ms"
            shell(f"ip netns exec {name} tc qdisc add dev lan root tbf {shape}")
        prefix = f"ip netns exec stepscope{os.getpid()}-{{rank}}"
        yield prefix, {"MASTER_ADDR": "10.77.0.1", "GLOO_SOCKET_IFNAME": "lan"}
    finally:
        for name in names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL, check=False)


def shell(*words: str) -> None:
    subprocess.run(" ".join(words).split(), check=True)


def can_shape() -> bool:
    return os.geteuid() == 0 and bool(shutil.which("ip") and shutil.which("tc"))


def verify(line: Line, arguments: argparse.Namespace, variables: Mapping[str, str]) -> dict:
    """The facts of `stepscope verify --json` for one line."""
    command = [
        sys.executable,
        "-c",
        "from stepscope.faces.terminal import main; main()",
        "verify",
        "--json",
        "--quiet",
        f"--warmup={arguments.warmup}",
        f"--steps={arguments.steps}",
        f"--rounds={arguments.rounds}",
        *(["--prefix", line.prefix] if line.prefix else []),
        line.change,
        str(SCRIPTS / f"{line.script}.py"),
        str(arguments.batch or line.batch),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, **ENVIRONMENT, **variables},
        stdout=subprocess.PIPE,
        text=True,
        stderr=None if arguments.verbose else subprocess.PIPE,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{line.change} of {line.script}: {done.stderr or ''}")
    return json.loads(done.stdout)


def measured(arguments: argparse.Namespace) -> Iterator[tuple[Line, dict]]:
    """Each line asked for, and its facts."""
    for line in LINES:
        if arguments.part in (None, line.part):
            yield line, verify(line, arguments, line.variables)
    for part, change in TOGETHER.items():
        if arguments.part in (None, part):
            yield from distributed(part, change, arguments)


def distributed(part: str, change: str, arguments: argparse.Namespace) -> Iterator[tuple[Line, dict]]:
    """GPT-2 in two processes, at each bandwidth."""
    if not can_shape():
        print("no root, ip or tc: on the loopback device", file=sys.stderr)
        alone = change.replace(",{network}", "")
        line = Line(part, "GPT-2, 2 processes, loopback", alone, "gpt2")
        yield line, verify(line, arguments, {})
        return
    for mbit in arguments.mbit or BANDWIDTHS_MBIT:
        with link(mbit) as (prefix, variables):
            network = f"bandwidth_gbps={mbit / 1000 * PAYLOAD:.4f},latency_us=100"
            name = f"GPT-2, 2 processes, {mbit} Mbit/s"
            line = Line(part, name, change.format(network=network), "gpt2", prefix)
            yield line, verify(line, arguments, variables)


def row(line: Line, facts: dict) -> str:
    """A line of the table in docs/evidence/accuracy/changes.md."""
    before, after = facts["before"], facts["after"]
    names = "+".join(change.partition(":")[0] for change in line.change.split("+"))
    return (
        f"| `{names}` | {line.name} | {before['step_ms']:.1f} "
        f"| {facts['predicted_step_ms']:.1f} | {after['step_ms']:.1f} "
        f"| {facts['predicted_speedup']:.2f}x | {facts['measured_speedup']:.2f}x "
        f"| {facts['error']:+.1%} | {before['spread']:.0%} / {after['spread']:.0%} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("fused", "amp", "dataloader", *TOGETHER))
    parser.add_argument("--warmup", type=int, default=4)
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, help="samples a batch, in place of each line's own")
    parser.add_argument("--mbit", type=int, nargs="+", help="in place of all three bandwidths")
    parser.add_argument("--out", type=Path, help="all facts, as JSON")
    parser.add_argument("--verbose", action="store_true", help="show what is going on")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # namespaces are to be removed
    begin, results = time.monotonic(), []
    print("| change | script | before, ms | predicted | measured | predicted | measured | error | spread |")
    print("|---|---|---:|---:|---:|---:|---:|---:|---:|")
    for line, facts in measured(arguments):
        print(row(line, facts), flush=True)
        results.append({"part": line.part, "name": line.name, **facts})
    if not results:
        return
    machine = ", ".join(f"{key} {value}" for key, value in results[0]["machine"].items())
    print(f"\n{machine}; {time.monotonic() - begin:.0f} s")
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
