"""A soak test: both servers for half an hour, under mixed load, with clients that misbehave.

    python benchmarks/soak.py [--minutes 30] [--part page|editor] [--seed N] [--slices N]

Starts `stepscope view` and `stepscope lsp --port 0`, and talks to both from this process: clients
that compare every answer with a reference, and clients that send half of a request, wrong tokens,
huge bodies, lone surrogates, edits out of order, or die. It prints the memory of each server as
time goes, how many requests there were, every wrong answer and whatever a server wrote to standard
error, and exits with 1 if there is any of these. Nothing leaves this machine's loopback.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

from big_trace import write_trace
from soak_clients.browsers import Browsers
from soak_clients.crowd import Crowd
from soak_clients.editing import Editing
from soak_clients.http_client import Address
from soak_clients.lsp_server import LspServer
from soak_clients.measuring import Measuring
from soak_clients.odd_browsers import OddBrowsers
from soak_clients.odd_editors import OddEditors
from soak_clients.tally import Tally
from soak_clients.watched_server import Sample, Watched, running

_SAMPLES = 30
_SETTLE_S = 20.0  # after the last client: what is left now is not in use
_MOST_GROWTH = 0.05  # from the middle third to the last third


class Part:
    """One server under load.

    Args:
        name: of the command.
        server: the running server.
        options: of the command line.
        pause_s: the longest pause of a client.
    """

    def __init__(self, name: str, server: Watched, options: argparse.Namespace, pause_s: float) -> None:
        self.name, self.server = name, server
        self.tally = Tally()
        self.crowd = Crowd(self.tally, options.seed, pause_s, options.pause_while)
        self.load: Callable[[], Awaitable[None]]


def main() -> int:
    """Run the servers, the clients and the watch; the exit code."""
    options = _options()
    make = {"page": _page, "editor": _editor}
    with tempfile.TemporaryDirectory(prefix="stepscope-soak-") as folder, ExitStack() as stack:
        names = [options.part] if options.part else list(make)
        parts = [make[name](Path(folder), stack, options) for name in names]
        asyncio.run(_soak(parts, options.minutes * 60))
        return max([_report(part) for part in parts])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--part", choices=["page", "editor"], help="by default both, side by side")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--slices", type=float, default=1e5, help="of the trace of the page")
    parser.add_argument("--clients", type=int, default=6, help="well-behaved ones, for each server")
    parser.add_argument("--pause", type=float, default=20.0, help="seconds between measurements")
    parser.add_argument("--pause-while", type=Path, help="clients wait while this exists")
    return parser.parse_args()


def _page(home: Path, stack: ExitStack, options: argparse.Namespace) -> Part:
    traces = [home / "first.json", home / "second.json"]
    for seed, trace in enumerate(traces):
        write_trace(trace, int(options.slices), seed)
    command = ["view", "--no-browser", *map(str, traces)]
    part = Part("stepscope view", stack.enter_context(running(command, 1, home)), options, 0.3)
    browsers = Browsers(_address(part.server), part.tally)

    async def load() -> None:
        other = home / "other"
        other.mkdir()
        with running(command, 1, other) as reference:
            await browsers.learn(_address(reference))
        await browsers.ready()
        odd = OddBrowsers(browsers, part.crowd)
        await part.crowd.run([*[browsers.browse] * options.clients, *odd.all()])

    part.load = load
    return part


def _editor(home: Path, stack: ExitStack, options: argparse.Namespace) -> Part:
    process = stack.enter_context(running(["lsp", "--port", "0"], 2, home))
    part = Part("stepscope lsp", process, options, 0.5)
    port, token = int(process.lines[0].rpartition(":")[2]), process.lines[1].split()[-1]
    folder = home / "project"
    folder.mkdir()
    server = LspServer(port, token, folder, part.tally)
    editing = Editing(server)
    measuring = Measuring(server, part.crowd.stop, options.pause)
    odd = OddEditors(server, part.crowd)
    clients = [measuring.measure, *[editing.edit] * options.clients, *odd.all()]
    part.load = lambda: part.crowd.run(clients)
    return part


def _address(server: Watched) -> Address:
    base, _, token = server.lines[0].partition("/?token=")
    return Address(int(base.rpartition(":")[2]), token)


async def _soak(parts: list[Part], seconds: float) -> None:
    running = [asyncio.ensure_future(part.load()) for part in parts]
    interrupted = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGINT, interrupted.set)
    for _ in range(_SAMPLES):
        await _under_load(parts[0].crowd, seconds / _SAMPLES, interrupted)
        if interrupted.is_set():
            break
        for part in parts:
            print(f"{part.name}: {part.server.look()}", file=sys.stderr, flush=True)
        for task in running:
            if task.done():
                task.result()  # a client of ours failed: say so at once
    for part in parts:
        part.crowd.stop.set()
    await asyncio.gather(*running)
    await asyncio.sleep(min(_SETTLE_S, seconds))


async def _under_load(crowd: Crowd, seconds: float, interrupted: asyncio.Event) -> None:
    """Wait for some seconds in which clients are at work."""
    while seconds > 0 and not interrupted.is_set():
        await asyncio.sleep(min(1, seconds))
        seconds -= 0 if crowd.is_idle() else 1


def _report(part: Part) -> int:
    """Print what a server was asked and what it cost; 1 if anything was wrong."""
    samples, tally = part.server.samples, part.tally
    last = part.server.look()
    print(f"{part.name}: {tally.asked.total():,} requests, {tally.error_count} wrong")
    print("\n".join(tally.rows()))
    moments = {"start": samples[0], "middle": samples[len(samples) // 2], "end": samples[-2]}
    for name, sample in (*moments.items(), ("after the last client", last)):
        print(f"  {name:<22} {sample}")
    complaints = part.server.complaints()
    for line in (*tally.errors, *(f"standard error: {one}" for one in complaints[:80])):
        print(f"  WRONG {line}")
    growth = _growth(samples[:-1])
    print(f"  memory from the middle third to the last {growth:+.1%}", end="; ")
    print(f"load average {os.getloadavg()[1]:.1f}")
    return int(bool(tally.error_count or complaints or growth > _MOST_GROWTH))


def _growth(samples: list[Sample]) -> float:
    """Of the mean: a single sample depends on the answers that are just being made."""
    third = len(samples) // 3
    middle, end = samples[third : 2 * third], samples[2 * third :]
    return fmean(one.resident_bytes for one in end) / fmean(one.resident_bytes for one in middle) - 1


if __name__ == "__main__":
    sys.exit(main())
