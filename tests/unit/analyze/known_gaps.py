"""Recordings whose idle time has known causes: a pen that writes them, and the truth by the microsecond."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

CAUSES = ("data", "synchronization", "host", "launch", "one_off")
A100 = ({"id": 0, "name": "NVIDIA A100-SXM4-80GB", "computeMajor": 8, "numSms": 108},)
_LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


@dataclass
class Pen:
    """Writes what one thread and one stream do, one after the other; times in whole microseconds."""

    now: int = 0
    free: int = 0  # when the stream has done all that was launched
    step: int = -1
    begun: int = 0
    calls: int = 0
    lines: list[str] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    doing: list[tuple[str, int, int]] = field(default_factory=list)  # cause while the device idles
    busy: list[tuple[int, int]] = field(default_factory=list)
    pending: list[tuple[int, int]] = field(default_factory=list)
    once_busy: list[tuple[int, int]] = field(default_factory=list)  # work that only compares algorithms

    def next_step(self) -> None:
        if self.step >= 0:
            self.steps.append(f"main | {self.begun} {self.now} | ProfilerStep#{self.step}")
        self.step, self.begun = self.step + 1, self.now

    def spend(self, us: int, cause: str = "host", name: str = "", options: str = "") -> None:
        """The thread does something for a time; by default Python that nothing records."""
        if name:
            self.lines.append(f"main | {self.now} {self.now + us} | {name} | {options}")
        self.doing.append((cause, self.now, self.now + us))
        self.now += us

    def launch(
        self, kernel: str, us: int, call: int = 5, latency: int = 6, slow: bool = False, operator: str = ""
    ) -> None:
        """Launch a kernel; a slow call loads it first."""
        self.calls += 1
        begin, end = self.now, self.now + call
        operator = operator or f"aten::{kernel}"
        self.lines.append(f"main | {begin} {end} | {operator}")
        self.lines.append(f"main | {begin} {end} | cudaLaunchKernel | corr={self.calls}")
        start = max((end if slow else begin) + latency, self.free)
        self.lines.append(f"stream 7 | {start} {start + us} | {kernel} | corr={self.calls}")
        self.pending.append((end if slow else begin, start))
        self.busy.append((start, start + us))
        self.doing.append(("one_off" if slow else "host", begin, end))
        self.now, self.free = end, start + us

    def wait(self, tail: int, name: str = "cudaStreamSynchronize", operator: str = "aten::item") -> None:
        """The thread is blocked until the stream is done, and a little longer."""
        until = max(self.free, self.now) + tail
        if operator:
            self.lines.append(f"main | {self.now} {until} | {operator}")
        self.spend(until - self.now, "synchronization", name)

    def copy_back(self, us: int, tail: int) -> None:
        """A copy to the host: its call returns when it has ended, or later."""
        self.calls += 1
        begin, start = self.now, max(self.now + 6, self.free)
        self.lines.append(f"stream 7 | {start} {start + us} | Memcpy DtoH | corr={self.calls}")
        self.pending.append((begin, start))
        self.busy.append((start, start + us))
        self.free = start + us
        options = f"corr={self.calls}"
        self.spend(self.free + tail - begin, "synchronization", "cudaMemcpyAsync", options)

    def benchmark(self, algorithms: int) -> None:
        """A convolution that times algorithms, and waits for each."""
        begin = self.now
        for number in range(algorithms):
            self.launch(f"algorithm_{number}", 400, operator="aten::_conv")
            self.once_busy.append(self.busy.pop())
            self.wait(4, "cudaEventSynchronize", "")
        self.doing.append(("one_off", begin, self.now))
        self.pending = [(start, end) for start, end in self.pending if start < begin]
        self.lines.append(f"main | {begin} {self.now} | aten::cudnn_convolution")

    def trace(self) -> Trace:
        self.next_step()
        return annotate(drawn_trace("\n".join([*self.steps, *self.lines]), devices=A100))

    def truth(self, spans: Sequence[tuple[int, int]]) -> dict[str, float]:
        """The idle time by cause in some spans of ns, ms, counted by the microsecond."""
        cause = np.full(max(self.now, self.free) + 1, CAUSES.index("host"))
        for name, start, end in self.doing:
            cause[start:end] = CAUSES.index(name)
        for start, end in self.pending:
            cause[start : max(start, end)] = CAUSES.index("launch")
        for start, end in [*self.busy, *self.once_busy]:
            cause[start:end] = len(CAUSES)
        chosen = np.zeros(len(cause), np.bool_)
        for start, end in spans:
            chosen[start // 1000 : end // 1000] = True
        spent = np.bincount(cause[chosen], minlength=len(CAUSES) + 1)
        return {name: float(spent[code]) / 1e3 for code, name in enumerate(CAUSES)}


Once = Callable[[Pen, int, bool, bool], None]


def composed_gap(pen: Pen, draw: random.Random) -> None:
    """What a thread does while its device idles: one to five things, each for up to 15 ms."""
    match draw.choice(["wait", "wait", "copy", "none"]):
        case "wait":
            pen.wait(draw.choice([0, 1, 10, 200, 3_000]))
        case "copy":
            pen.copy_back(draw.choice([5, 800]), draw.choice([0, 1, 10, 200]))
    for _ in range(draw.randint(0, 4)):
        us = draw.choice([3, 40, 700, 1_500, 6_000, 15_000])
        match draw.choice(["python", "range", "data", "wait", "operator", "call"]):
            case "python":
                pen.spend(us)
            case "range":
                pen.spend(us, name="log_everything", options="cat=annotation")
            case "data":
                pen.spend(us, "data", _LOADER)
            case "wait":
                pen.spend(
                    us, "synchronization", draw.choice(["cudaDeviceSynchronize", "cudaEventSynchronize"])
                )
            case "operator":
                pen.spend(us, name="aten::empty")
            case "call":
                pen.spend(min(us, 900), name="cudaMalloc")


def steps_with_gaps(seed: int, once: Once | None = None, steps: int = 0, busy: bool = False) -> Pen:
    """Three to five steps, each with one to four gaps of several causes; every step the same recipe.

    Args:
        once: what the process pays once, at random places where the device has nothing to do.
        steps: another number of steps.
        busy: whether the device still works at these places.
    """
    pen, draw = Pen(), random.Random(seed)
    recipe, parts, count = draw.random(), draw.randint(1, 4), steps or draw.randint(3, 5)
    for step in range(count):
        pen.next_step()
        pen.spend(10)
        again = random.Random(recipe)
        for part in range(parts):
            for _ in range(again.randint(1, 6)):
                pen.launch(again.choice(["mm", "relu", "softmax"]), again.choice([20, 300, 2_500]))
            place = step, part == 0, step == count - 1 and part == parts - 1
            if once and busy:
                once(pen, *place)
            composed_gap(pen, again)
            pen.wait(0, "cudaDeviceSynchronize", "")
            if once and not busy:
                once(pen, *place)
        pen.launch("adam", 50, operator="Optimizer.step#Adam.step")
        pen.wait(again.choice([0, 5]), "cudaDeviceSynchronize", "")
    return pen


SETUPS = {
    "stream": ("cudaStreamCreateWithFlags", (1_000, 300_000)),
    "module": ("cuModuleLoadData", (200, 40_000)),
    "library": ("cuLibraryLoadData", (2_000, 90_000)),
    "handle": ("cublasCreate_v2", (5_000, 60_000)),
    "context": ("cudaFree", (60_000, 900_000)),
    "properties": ("cudaGetDeviceProperties_v2", (2_000, 8_000)),
    "unload": ("cuModuleUnload", (900, 20_000)),
}


def once_of(seed: int, steps: int, only_recurring: bool = False) -> Once:
    """One to three things that a process pays once, each in a random step, and one that every step pays."""
    draw = random.Random(seed)
    several = ["compile", "allocation"] if steps >= 3 else []
    kinds = draw.sample([*SETUPS, "launch", "benchmark", "teardown", *several], draw.randint(1, 3))
    places = {kind: draw.randrange(steps) for kind in kinds}
    recurring = draw.choice(["", "cudaStreamCreate", "cudaMalloc"]) if steps >= 3 else ""

    def once(pen: Pen, step: int, begins: bool, ends: bool) -> None:
        if begins and recurring:
            pen.spend(2_000, name=recurring, options="cat=runtime")
        for kind in kinds if begins else ():
            if places[kind] == step:
                pay_once(pen, kind, draw, only_recurring)
        if ends and "teardown" in kinds and not only_recurring:
            for _ in range(20):
                pen.spend(draw.randint(100, 3_000), "one_off", "cuModuleUnload", "cat=runtime")

    return once


def pay_once(pen: Pen, kind: str, draw: random.Random, later: bool) -> None:
    """Pay one cost; later, only what each step pays of it."""
    if kind == "launch":
        pen.launch("new_kernel", 10, call=5 if later else draw.randint(1_200, 400_000), slow=not later)
        pen.wait(0, "cudaDeviceSynchronize", "")
    if later:
        return
    if kind in SETUPS:
        name, span = SETUPS[kind]
        pen.spend(draw.randint(*span), "one_off", name, "cat=runtime")
    match kind:
        case "benchmark":
            pen.benchmark(draw.randint(3, 40))
        case "compile":
            pen.spend(draw.randint(20_000, 500_000), "one_off", "_compile.compile_inner (dynamo_timed)")
        case "allocation":
            pen.spend(draw.randint(3_000, 9_000), "one_off", "cudaHostAlloc", "cat=runtime")


def windows(trace: Trace, numbers: Sequence[int]) -> list[tuple[int, int]]:
    """The windows of some steps, ns."""
    chosen = trace["steps"].take(np.isin(trace["steps"]["step"], numbers))
    columns = chosen["window_start_ns"].tolist(), chosen["window_end_ns"].tolist()
    return list(zip(*columns, strict=True))


def gap_with_culprit(seed: int) -> tuple[Pen, str, float]:
    """Steps with one long gap, in which one thing takes a share of the time; its name, and the share.

    The rest of the gap is not recorded, or in several things that are shorter.
    """
    pen, draw = Pen(), random.Random(seed)
    steps, gap_us = draw.choice([1, 3, 4]), draw.choice([3_000, 20_000, 99_600])
    share = draw.choice([0.0005, draw.uniform(0.01, 0.46), draw.uniform(0.54, 0.99)])
    name, options = draw.choice(
        [
            ("log_everything", "cat=annotation"),
            ("train.py(12): log_metrics", "cat=python"),
            ("aten::nonzero_static", ""),
            ("cudaHostRegister", "cat=runtime"),
        ]
    )
    if name == "cudaHostRegister":  # longer calls in a single step may be paid once
        gap_us = min(gap_us, 20_000)
    pieces, contained = draw.randint(1, 3), draw.random() < 0.5
    before = draw.random()
    for _ in range(steps):
        pen.next_step()
        begun = pen.now
        for _ in range(4):
            pen.launch("mm", 300)
        pen.wait(5)
        rest = round(gap_us * (1 - share))
        pen.spend(round(before * rest))
        for _ in range(pieces):
            pen.spend(max(round(gap_us * share / pieces), 1), name=name, options=options)
        others = 3 if rest < 0.4 * gap_us else 0
        for number in range(others):
            pen.spend(round((1 - before) * rest / 4), name=f"helper_{number}", options="cat=annotation")
        pen.spend(rest - round(before * rest) - others * round((1 - before) * rest / 4))
        pen.launch("mm", 300)
        pen.launch("adam", 50, operator="Optimizer.step#Adam.step")
        pen.wait(3, "cudaDeviceSynchronize", "")
        if contained:
            pen.lines.append(f"main | {begun} {pen.now} | train_step | cat=annotation")
    return pen, name, share
