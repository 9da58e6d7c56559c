"""Writes training traces of any size, the same bytes for the same arguments.

    python benchmarks/big_trace.py 1000000 big.json [--seed N]

What torch.profiler writes of a model of many small operators (HOTLINE's RNN-T: 941,489 operations,
266 MB): steps of data loading, copies, forward, backward on a separate thread, and optimizer;
operators with shapes, nested; launches and kernels tied by correlation and by flow arrows, on four
streams; backward tied to forward by sequence number and by arrow.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

STEPS = 6
STREAMS = (7, 20, 24, 28)
_PROCESS, _MAIN, _AUTOGRAD = 4021, 4021, 4388
_BEGIN_NS = 1_712_195_495_505_582_988
_SLICES_PER_LAYER = 13  # 5 forward, 5 backward, 3 in the optimizer
_SLICES_PER_STEP = 6  # step, data loading, copy (operator, call, device), optimizer range
_LINES_AT_ONCE = 4096
_WIDTHS = (256, 320, 640, 1024, 1344)
_LAYERS = (
    ("aten::linear", "aten::t", "aten::addmm", "AddmmBackward0", "ampere_sgemm_128x64_tn"),
    (
        "aten::lstm_cell",
        "aten::unsafe_chunk",
        "aten::_thnn_fused_lstm_cell",
        "ThnnFusedLstmCellBackward0",
        "void at::native::(anonymous namespace)::kernel::lstm_cell_forward<float, float, int, 1>",
    ),
    (
        "aten::dropout",
        "aten::empty_like",
        "aten::native_dropout",
        "NativeDropoutBackward0",
        "void at::native::(anonymous namespace)::fused_dropout_kernel_vec<float, float, 1, 4>",
    ),
    (
        "aten::layer_norm",
        "aten::empty",
        "aten::native_layer_norm",
        "NativeLayerNormBackward0",
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float>",
    ),
)


def write_trace(path: Path, slices: int, seed: int = 0) -> Path:
    """Write a trace of about `slices` slices (and a third as many flow arrows) to `path`."""
    events = _events(slices, random.Random(seed))
    with path.open("w", encoding="ascii") as file:
        file.write('{\n"schemaVersion": 1, "traceEvents": [\n')
        waiting = [next(events)]
        for event in events:
            waiting.append(event)
            if len(waiting) == _LINES_AT_ONCE:
                file.write(",\n".join(waiting[:-1]) + ",\n")
                waiting = waiting[-1:]
        file.write(",\n".join(waiting) + "\n]}\n")
    return path


@dataclass
class _Clock:
    """How far the CPU and each stream have come, and the numbers that tie events."""

    random: random.Random
    cpu: int = _BEGIN_NS
    streams: list[int] = field(default_factory=lambda: [_BEGIN_NS] * len(STREAMS))
    correlation: int = 0
    sequence: int = 0
    arrow: int = 0

    def pass_us(self, least: int, most: int) -> int:
        """Let the CPU work for a while; returns the moment it is done, ns."""
        self.cpu += self.random.randrange(least * 1000, most * 1000)
        return self.cpu


def _events(slices: int, dice: random.Random) -> Iterator[str]:
    layers = max(1, (slices // STEPS - _SLICES_PER_STEP) // _SLICES_PER_LAYER)
    clock = _Clock(dice)
    yield from _labels()
    for step in range(STEPS):
        yield from _step(clock, step, layers)


def _labels() -> Iterator[str]:
    names = [
        ("process_name", _PROCESS, 0, "python"),
        ("thread_name", _PROCESS, _MAIN, "main"),
        ("thread_name", _PROCESS, _AUTOGRAD, "pt_autograd_0"),
        ("process_name", 0, 0, "GPU 0"),
    ]
    names += [("thread_name", 0, stream, f"stream {stream}") for stream in STREAMS]
    for name, process, thread, value in names:
        yield (
            f'{{"name": "{name}", "ph": "M", "ts": {_us(_BEGIN_NS)}, "pid": {process}, '
            f'"tid": {thread}, "args": {{"name": "{value}"}}}}'
        )


def _step(clock: _Clock, step: int, layers: int) -> Iterator[str]:
    begin = clock.cpu
    yield from _load_batch(clock)
    forward = []
    for index in range(layers):
        events, link = _forward(clock, _LAYERS[index % len(_LAYERS)])
        forward.append((index, *link))
        yield from events
    for index, sequence, moment in reversed(forward):
        yield from _backward(clock, _LAYERS[index % len(_LAYERS)], sequence, moment)
    yield from _optimize(clock, layers)
    clock.cpu = max(clock.cpu, *clock.streams)  # loss.item() waits for the device
    yield _slice("user_annotation", f"ProfilerStep#{step}", _MAIN, begin, clock.cpu, "")
    clock.pass_us(1, 9)


def _load_batch(clock: _Clock) -> Iterator[str]:
    begin = clock.cpu
    name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
    yield _slice("user_annotation", name, _MAIN, begin, clock.pass_us(90, 400), "")
    begin = clock.pass_us(1, 3)
    yield from _launch(clock, _MAIN, "cudaMemcpyAsync", "Memcpy HtoD (Pageable -> Device)", 0)
    shapes = _shapes(32, 240)
    yield _slice("cpu_op", "aten::copy_", _MAIN, begin, clock.pass_us(1, 3), shapes)


def _forward(clock: _Clock, layer: tuple[str, ...]) -> tuple[list[str], tuple[int, int]]:
    """Events of one layer, and its sequence number and moment."""
    outer, inner, computing, _, kernel = layer
    sequence, clock.sequence = clock.sequence, clock.sequence + 1
    shapes = _shapes(clock.random.choice(_WIDTHS), clock.random.choice(_WIDTHS))
    begin = clock.pass_us(1, 4)
    first = clock.pass_us(1, 3)
    events = [_slice("cpu_op", inner, _MAIN, first, clock.pass_us(1, 3), "")]
    second = clock.pass_us(1, 2)
    events += _launch(clock, _MAIN, "cudaLaunchKernel", kernel, clock.sequence % len(STREAMS))
    tied = f'{shapes}, "Sequence number": {sequence}, "Fwd thread id": 0'
    events.append(_slice("cpu_op", computing, _MAIN, second, clock.pass_us(1, 3), tied))
    events.append(_slice("cpu_op", outer, _MAIN, begin, clock.pass_us(1, 2), shapes))
    return events, (sequence, second)


def _backward(clock: _Clock, layer: tuple[str, ...], sequence: int, forward_ns: int) -> Iterator[str]:
    node, kernel = layer[3], layer[4]
    tied = f'"Sequence number": {sequence}, "Fwd thread id": 1'
    begin, first = clock.pass_us(1, 4), clock.pass_us(1, 3)
    second = clock.pass_us(1, 2)
    yield from _arrow(clock, "fwdbwd", (_PROCESS, _MAIN, forward_ns), (_PROCESS, _AUTOGRAD, first))
    stream = sequence % len(STREAMS)
    yield from _launch(clock, _AUTOGRAD, "cudaLaunchKernel", f"{kernel}_backward", stream)
    shapes = _shapes(clock.random.choice(_WIDTHS), clock.random.choice(_WIDTHS))
    yield _slice("cpu_op", "aten::mm", _AUTOGRAD, second, clock.pass_us(1, 3), shapes)
    yield _slice("cpu_op", node, _AUTOGRAD, first, clock.pass_us(1, 2), tied)
    name = f"autograd::engine::evaluate_function: {node}"
    yield _slice("cpu_op", name, _AUTOGRAD, begin, clock.pass_us(1, 2), tied)


def _optimize(clock: _Clock, parameters: int) -> Iterator[str]:
    start = clock.cpu
    kernel = "void at::native::multi_tensor_apply_kernel<at::native::TensorListMetadata<4>>"
    for index in range(parameters):
        begin = clock.pass_us(1, 3)
        yield from _launch(clock, _MAIN, "cudaLaunchKernel", kernel, index % len(STREAMS))
        yield _slice("cpu_op", "aten::_fused_adamw_", _MAIN, begin, clock.pass_us(1, 3), "")
    name = "Optimizer.step#AdamW.step"
    yield _slice("user_annotation", name, _MAIN, start, clock.pass_us(1, 2), "")


def _launch(clock: _Clock, thread: int, call: str, work: str, stream: int) -> Iterator[str]:
    """A runtime call, the device work it starts, and the arrow between the two."""
    clock.correlation += 1
    tied = f'"correlation": {clock.correlation}'
    begin, end = clock.cpu, clock.pass_us(2, 6)
    start = max(end + clock.random.randrange(500, 3000), clock.streams[stream] + 100)
    clock.streams[stream] = start + clock.random.randrange(1500, 25000)
    number = STREAMS[stream]
    yield _slice("cuda_runtime", call, thread, begin, end, f'"cbid": 211, {tied}')
    where = f'"device": 0, "stream": {number}, {tied}'
    kind = "gpu_memcpy" if call == "cudaMemcpyAsync" else "kernel"
    facts = (
        f'{where}, "bytes": {32 * 240 * 4}, "memory bandwidth (GB/s)": 7.2'
        if kind != "kernel"
        else f'{where}, "grid": [{stream + 8}, 1, 1], "block": [128, 1, 1]'
    )
    yield _slice(kind, work, number, start, clock.streams[stream], facts, process=0)
    yield from _arrow(clock, "ac2g", (_PROCESS, thread, begin), (0, number, start), clock.correlation)


def _slice(
    category: str, name: str, thread: int, begin: int, end: int, arguments: str, process: int = _PROCESS
) -> str:
    return (
        f'{{"ph": "X", "cat": "{category}", "name": "{name}", "pid": {process}, "tid": {thread}, '
        f'"ts": {_us(begin)}, "dur": {_us(end - begin)}, "args": {{{arguments}}}}}'
    )


def _arrow(
    clock: _Clock,
    kind: str,
    tail: tuple[int, int, int],
    head: tuple[int, int, int],
    identity: int | None = None,
) -> Iterator[str]:
    clock.arrow += identity is None
    number = clock.arrow if identity is None else identity
    for phase, (process, thread, moment), bound in (("s", tail, ""), ("f", head, ', "bp": "e"')):
        yield (
            f'{{"ph": "{phase}", "id": {number}, "pid": {process}, "tid": {thread}, '
            f'"ts": {_us(moment)}, "cat": "{kind}", "name": "{kind}"{bound}}}'
        )


def _shapes(rows: int, columns: int) -> str:
    return f'"Input Dims": [[{rows}, {columns}], [{columns}], []], "Input type": ["float", "float", "Scalar"]'


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("slices", type=lambda text: int(float(text)), help="as 1e6")
    parser.add_argument("path", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    path = write_trace(args.path, args.slices, args.seed)
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
