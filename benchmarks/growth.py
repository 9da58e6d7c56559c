"""How CPU time grows with each dimension of a trace: `python benchmarks/growth.py [DIMENSION…]`.

Writes traces that grow in one dimension over a decade, runs commands on them without the cache, and
fits the exponent of CPU time: 1 is linear, 2 quadratic. The time of the smallest possible trace is
subtracted, since it does not grow. Prints a table in Markdown that marks exponents over the limit.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

LIMIT = 1.15
_POINTS = (1.0, 2.15, 4.64, 10.0)
_MIN_SECONDS = 0.02  # shorter times are noise
Event = dict[str, Any]
Files = Iterator[tuple[str, bytes]]


# -- events


def _slice(name: str, start: float, length: float, **more: Any) -> Event:
    return {"ph": "X", "cat": "cpu_op", "pid": 1, "tid": 1, "name": name, "ts": start, "dur": length, **more}


def _launched(number: int, start: float, kernel: str = "sgemm", stream: int = 7) -> list[Event]:
    """An operator that launches a kernel, within 10 us of `start`."""
    key = {"correlation": number}
    return [
        _slice("aten::mm", start, 8, args={"External id": number}),
        _slice("cudaLaunchKernel", start + 1, 4, cat="cuda_runtime", args=key),
        _slice(
            kernel, start + 6, 3, cat="kernel", pid=0, tid=stream, args={**key, "stream": stream, "device": 0}
        ),
    ]


def _step(number: int, start: float, length: float) -> Event:
    return _slice(f"ProfilerStep#{number}", start, length, cat="user_annotation")


def _in_steps(events: Callable[[int], list[Event]], count: int, steps: int = 5) -> Iterator[Event]:
    """`count` groups of events of 10 us each, in a few steps."""
    each = max(count // steps, 1)
    for number in range(count):
        yield from events(number)
    for step in range(-(-count // each)):
        yield _step(step, step * each * 10, each * 10)


# -- dimensions: events of a trace of size n


def operators(n: int) -> Iterator[Event]:
    return _in_steps(lambda i: _launched(i, i * 10), n)


def steps(n: int) -> Iterator[Event]:
    for step in range(n):
        at = step * 100
        yield _step(step, at, 100)
        yield from _launched(2 * step, at)
        yield from _launched(2 * step + 1, at + 20)
        yield _slice("Optimizer.step#SGD.step", at + 50, 20, cat="user_annotation")
        yield _slice("aten::add_", at + 55, 5)


def threads(n: int) -> Iterator[Event]:
    return _in_steps(lambda i: [_slice("aten::mm", i * 10, 8, tid=i + 10)], n)


def streams(n: int) -> Iterator[Event]:
    return _in_steps(lambda i: _launched(i, i * 10, stream=i), n)


def operator_names(n: int) -> Iterator[Event]:
    return _in_steps(lambda i: [_slice(f"op_{i}", i * 10, 8)], n)


def kernel_names(n: int) -> Iterator[Event]:
    return _in_steps(lambda i: _launched(i, i * 10, f"void kernel_{i}<float>(float*)"), n)


def optimizer_names(n: int) -> Iterator[Event]:
    def update(i: int) -> list[Event]:
        step = _slice(f"Optimizer.step#Class{i}.step", i * 10, 8, cat="user_annotation")
        return [step, _slice("aten::add_", i * 10 + 1, 5)]

    return _in_steps(update, n)


def nesting(n: int) -> Iterator[Event]:
    """Python frames nested n deep, in each of three steps."""
    length = 10 * n
    for step in range(3):
        at = step * 2 * length
        yield _step(step, at, 2 * length)
        for depth in range(n):
            yield _slice(
                f"m.py({depth}): f", at + depth, 2 * (length - depth) - 1 - depth, cat="python_function"
            )


def begin_end(n: int) -> Iterator[Event]:
    """Begin events nested n deep, with their ends."""
    yield from _in_steps(lambda i: _launched(i, i * 10), 10)
    for depth in range(n):
        yield {"ph": "B", "name": f"f{depth % 7}", "pid": 1, "tid": 2, "ts": depth}
    for depth in range(n):
        yield {"ph": "E", "pid": 1, "tid": 2, "ts": n + depth}


def simultaneous(n: int) -> Iterator[Event]:
    """Begins and ends that all have one time."""
    yield from _in_steps(lambda i: _launched(i, i * 10), 10)
    for number in range(n):
        yield {"ph": "E", "name": f"f{number}", "pid": 1, "tid": 2, "ts": 5}
    for number in range(n):
        yield {"ph": "B", "name": f"f{number}", "pid": 1, "tid": 2, "ts": 5}


def asynchronous(n: int) -> Iterator[Event]:
    yield from _in_steps(lambda i: _launched(i, i * 10), 10)
    for number in range(n):
        for phase, at in (("b", number), ("e", number + 5)):
            yield {
                "ph": phase,
                "cat": f"c{number % 9}",
                "id": number,
                "name": "a",
                "pid": 1,
                "tid": 1,
                "ts": at,
            }


def modules(n: int) -> Iterator[Event]:
    """A root with n modules, in each of three steps."""
    for step in range(3):
        at = step * n * 30
        yield _step(step, at, n * 30)
        yield _slice("nn.Module: Net_0", at, n * 10, cat="python_function")
        for number in range(n):
            start = at + number * 10
            yield _slice(f"nn.Module: Linear_{number}", start + 1, 8, cat="python_function")
            yield _slice("aten::linear", start + 2, 5)


def module_depth(n: int) -> Iterator[Event]:
    """Modules nested n deep, in each of three steps."""
    for step in range(3):
        at = step * n * 30
        yield _step(step, at, n * 30)
        for depth in range(n):
            yield _slice(f"nn.Module: Block_{depth}", at + depth, 10 * n - 2 * depth, cat="python_function")
            yield _slice("aten::linear", at + depth + 0.25, 0.5)


def collectives(n: int) -> Iterator[Event]:
    name, extra = "ncclDevKernel_AllReduce_Sum_f32_RING_LL", {"In msg nelems": 1024}

    def both(i: int) -> list[Event]:
        found = _launched(i, i * 10, name, stream=20)
        found[-1]["args"].update(extra, **{"Collective name": "allreduce", "dtype": "Float"})
        return [*found, *_launched(n + i, i * 10 + 0.5)]

    return _in_steps(both, n)


def arguments(n: int) -> Iterator[Event]:
    """100 operators with n arguments each."""
    values = {f"key {number}": number for number in range(n)}
    return _in_steps(lambda i: [_slice("aten::mm", i * 10, 8, args=values)], 100)


def allocations(n: int) -> Iterator[Event]:
    yield from _in_steps(lambda i: _launched(i, i * 10), 50)
    for number in range(n):
        size = 512 if number % 2 == 0 else -512
        yield {
            "ph": "i",
            "name": "[memory]",
            "pid": 1,
            "tid": 1,
            "ts": number * 500 / n,
            "args": {
                "Bytes": size,
                "Addr": number // 2,
                "Device Type": 1,
                "Device Id": 0,
                "Total Allocated": 512,
            },
        }


def arrows(n: int) -> Iterator[Event]:
    def both(i: int) -> list[Event]:
        ends = (("s", 1), ("f", 7))
        return [
            *_launched(i, i * 10),
            *(
                {
                    "ph": phase,
                    "id": i,
                    "cat": "ac2g",
                    "name": "ac2g",
                    "bp": "e",
                    "pid": 1,
                    "tid": 1,
                    "ts": i * 10 + at,
                }
                for phase, at in ends
            ),
        ]

    return _in_steps(both, n)


def counters(n: int) -> Iterator[Event]:
    yield from _in_steps(lambda i: _launched(i, i * 10), 50)
    for number in range(n):
        yield {"ph": "C", "name": "c", "pid": 1, "tid": 1, "ts": number, "args": {"v": number}}


# -- malformed text around ordinary events


def _text(events: Iterator[Event]) -> str:
    return '{"schemaVersion": 1, "traceEvents": [' + ",\n".join(map(json.dumps, events)) + "]}"


def malformed(n: int) -> str:
    """n events with a missing comma, each before a good one."""
    good = [json.dumps(event) for event in operators(n)]
    bad = '{"ph": "X" "name": "broken"},\n'
    return '{"traceEvents": [' + ",\n".join(bad + text for text in good[:n]) + "]}"


def unclosed(n: int) -> str:
    """n events whose arguments are never closed, so that each contains the next."""
    bad = '{"ph": "X", "name": "open", "args": [\n'
    good = ",\n".join(json.dumps(event) for event in operators(50))
    return '{"traceEvents": [' + good + "," + bad * n + good + "]}"


def false_keys(n: int) -> str:
    """n keys `traceEvents` inside another object, before the real one."""
    false = ", ".join(f'"{number}": {{"traceEvents": []}}' for number in range(n))
    return '{"other": {' + false + "}, " + _text(operators(50))[1:]


DIMENSIONS: dict[str, tuple[Callable[[int], Any], int]] = {
    "operators": (operators, 2000),
    "steps": (steps, 500),
    "threads": (threads, 300),
    "streams": (streams, 300),
    "operator names": (operator_names, 2000),
    "kernel names": (kernel_names, 2000),
    "optimizer names": (optimizer_names, 2000),
    "nesting": (nesting, 200),
    "begin and end events": (begin_end, 3000),
    "simultaneous events": (simultaneous, 1000),
    "asynchronous events": (asynchronous, 3000),
    "modules": (modules, 200),
    "module depth": (module_depth, 10),
    "collectives": (collectives, 1000),
    "arguments per event": (arguments, 200),
    "allocations": (allocations, 5000),
    "arrows": (arrows, 2000),
    "counters": (counters, 5000),
    "malformed events": (malformed, 2000),
    "unclosed events": (unclosed, 1000),
    "false keys": (false_keys, 1000),
}


# -- files that are no trace events


def ranks(n: int) -> Files:
    """A folder of n ranks, each with five steps and a collective in each."""
    for rank in range(n):
        events = [*collectives(5), *_in_steps(lambda i: _launched(100 + i, i * 10), 20)]
        content = {"distributedInfo": {"rank": rank, "world_size": n}, "traceEvents": events}
        yield f"job/rank{rank}.json", json.dumps(content).encode()


def contexts(n: int) -> Files:
    """A capture with n contexts, in paths of ten."""
    count = 10 * n + 2
    parents = [-1, 0, *(1 if row % 10 == 0 else row + 1 for row in range(10 * n))]
    names = ["", "main", *(f"f{row % 997}" for row in range(10 * n))]
    strings = sorted(set(names) | {"train.py"})
    places = {text: place for place, text in enumerate(strings)}
    leaves = list(range(11, count, 10))
    columns = {
        name: [value] * len(leaves)
        for name, value in (("count", 3), ("sum", 300), ("min", 90), ("max", 110), ("squares", 200.0))
    }
    tree = {
        "format": "stepscope contexts",
        "version": 1,
        "collector": "native",
        "lacks": [],
        "started_unix_ns": 0,
        "elapsed_ns": 10**9,
        "complete": True,
        "sources": ["python"],
        "strings": strings,
        "kinds": ["root", "thread", "python", "operator"],
        "nodes": {
            "parent": parents,
            "relation": [0] * count,
            "kind": [0, 1, *(3 if row % 10 == 9 else 2 for row in range(10 * n))],
            "name": [places[name] for name in names],
            "file": [places["train.py"]] * count,
            "line": [row % 5000 for row in range(count)],
            "class": [places[""]] * count,
        },
        "metrics": {
            "cpu_ns": {"unit": "ns", "nesting": "inclusive", "meaning": "time", "node": leaves, **columns}
        },
        "totals": {"cpu_ns": 300 * n},
        "dropped": {},
        "notes": [],
    }
    manifest = {"format": "stepscope capture", "version": 1, "outcome": "complete", "message": ""}
    yield "run.stepscope", _zipped(manifest, tree)


def _zipped(manifest: dict[str, Any], tree: dict[str, Any]) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w") as archive:
        archive.writestr("modules.json", json.dumps({"roots": []}))
        archive.writestr("contexts.json", json.dumps(tree))
        archive.writestr("manifest.json", json.dumps(manifest))
    return target.getvalue()


OTHER_DIMENSIONS: dict[str, tuple[Callable[[int], Files], int, str, tuple[str, ...]]] = {
    "ranks": (ranks, 6, "job", ("report", "analyze", "ranks")),
    "contexts": (contexts, 2000, "run.stepscope", ("contexts", "contexts, bottom up")),
}


# -- commands


def _run(*arguments: str, cache: bool = True) -> None:
    from stepscope.faces.terminal.commands import stepscope

    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        options = ["--no-cache"] if cache else []
        stepscope.main([*arguments, *options], standalone_mode=False)


COMMANDS: dict[str, Callable[[Path], None]] = {
    "report": lambda path: _run("report", str(path)),
    "analyze": lambda path: _run("analyze", str(path)),
    "query": lambda path: _run("query", str(path), "select count(*) from events"),
    "whatif": lambda path: _run("whatif", str(path), "--all"),
    "contexts": lambda path: _run("contexts", str(path)),
    "diff": lambda path: _run("diff", str(path), str(path)),
    "report --html": lambda path: _run("report", str(path), "--html", f"{path}.html"),
    "contexts, bottom up": lambda path: _run("contexts", str(path), "--bottom-up"),
    "ranks": lambda path: _run("ranks", str(path), cache=False),
}
_FIRST_COMMANDS = tuple(COMMANDS)[:6]


def seconds(command: str, path: Path) -> float:
    """CPU time of a command on a file, all threads."""
    start = time.process_time()
    COMMANDS[command](path)
    return time.process_time() - start


def write(path: Path, made: Any) -> None:
    """Write the trace of a dimension."""
    path.write_text(made if isinstance(made, str) else _text(made))


def exponent(sizes: list[int], times: list[float]) -> float:
    """The slope of log(time) over log(size), of times that are more than noise."""
    x, y = np.log(sizes), np.log(np.maximum(times, _MIN_SECONDS))
    return float(np.polyfit(x, y, 1)[0])


def measure(dimension: str, scale: float, command: str, folder: Path, fixed: float) -> tuple[float, float]:
    """The exponent of one dimension and command, and the longest time."""
    make, base = DIMENSIONS[dimension]
    sizes, times = [round(scale * base * point) for point in _POINTS], []
    for size in sizes:
        write(folder / "trace.json", make(size))
        times.append(seconds(command, folder / "trace.json") - fixed)
    return exponent(sizes, times), max(times) + fixed


def _print_other(dimension: str, scale: float, folder: Path) -> None:
    """A line for each command that reads such files: dimension, size, exponent and seconds."""
    make, base, name, commands = OTHER_DIMENSIONS[dimension]
    sizes = [1, *(round(scale * base * point) for point in _POINTS)]
    for command in commands:
        times = []
        for size in sizes:
            shutil.rmtree(folder / "job", ignore_errors=True)
            for inner, content in make(size):
                (folder / inner).parent.mkdir(exist_ok=True)
                (folder / inner).write_bytes(content)
            seconds(command, folder / name) if size == 1 else None  # imports
            times.append(seconds(command, folder / name))
        slope = exponent(sizes[1:], [time - times[0] for time in times[1:]])
        mark = " !" * (slope > LIMIT)
        print(
            f"| {dimension} | {sizes[-1]:,} | {command} | {slope:.2f}{mark} | {times[-1]:.2f} |", flush=True
        )


def main() -> None:
    """Print the table of the dimensions and commands asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "dimensions", nargs="*", metavar="DIMENSION", default=[*DIMENSIONS, *OTHER_DIMENSIONS]
    )
    parser.add_argument("--scale", type=float, default=1, help="multiplies every size")
    parser.add_argument("--command", action="append", choices=COMMANDS)
    options = parser.parse_args()
    commands = options.command or list(_FIRST_COMMANDS)
    print("| dimension | size | " + " | ".join(f"{name}, exponent | s" for name in commands) + " |")
    print("|---|---:|" + "---:|---:|" * len(commands), flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / "least.json", operators(10))
        fixed = {}
        for command in commands:
            seconds(command, folder / "least.json")  # imports
            fixed[command] = seconds(command, folder / "least.json")
        for dimension in options.dimensions:
            if dimension in OTHER_DIMENSIONS:
                _print_other(dimension, options.scale, folder)
                continue
            size = round(options.scale * DIMENSIONS[dimension][1] * _POINTS[-1])
            cells = [dimension, f"{size:,}"]
            for command in commands:
                slope, longest = measure(dimension, options.scale, command, folder, fixed[command])
                cells += [f"{slope:.2f}" + " !" * (slope > LIMIT), f"{longest:.2f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
