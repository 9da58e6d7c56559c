"""Findings in full on steps of training on a CPU, in PyTorch and JAX: loops, gradients, batches, programs."""

from __future__ import annotations

import textwrap
from typing import Any

import pytest
from drawn_findings import BY_NAME, Case, Limit, alone, repeated, told
from msgspec.structs import replace

from stepscope.analyze import Finding, RuleContext, apply_rules
from stepscope.analyze.rules.copy_fusions import only_moves
from stepscope.facts.annotate import annotate
from stepscope.facts.summary.facts import StagePlace
from stepscope.testing import drawn_trace

NODE = "autograd::engine::evaluate_function:"
TRAINING = f"""
    main | 10 20 | aten::mm | seq=1
    main | 900 910 | {NODE} MmBackward0 | seq=1 fwd=1
    main | 950 960 | Optimizer.step#SGD.step
"""
JAX: dict[str, Any] = {"framework": "jax"}
OF_JAX = "train#step_num={} | cat=annotation"
EXPERTS = {
    "name": "moe",
    "class": "MoE",
    "children": [{"name": f"experts.{number}", "class": "Expert"} for number in range(2)],
}
LAYER = {"name": "net", "class": "Net", "children": [{"name": "layer", "class": "Linear"}]}


def program(name: str, start: float, end: float, operation: str = "fusion", more: str = "") -> str:
    """A call of a compiled function, in whose second half its operation runs."""
    middle = (start + end) / 2
    return (
        f"main | {start} {end} | PjitFunction({name}) | cat=runtime\n"
        f"main | {middle} {end} | {operation} | hlo__module=jit_{name} source=net.py:7 {more}\n"
    )


def of_jax(*parts: str, us: float = 20_000) -> str:
    return repeated("".join(parts), us, mark=OF_JAX)


# -- programs


def moving(*operations: tuple[str, float, str]) -> str:
    """Operations one after the other: name, us and options."""
    parts, at = [], 0.0
    for name, us, options in operations:
        parts.append(program("f", at, at + 2 * us, name, options))
        at += 2 * us
    return of_jax(*parts)


def counted(flops: float, size: float) -> str:
    return f"flops__from__shapes={flops} bytes__from__shapes={size}"


COUNTED = [
    ("copy.1", 3000, counted(0, 9)),
    ("copy.2", 800, counted(1, 9)),
    ("wrapped_convert", 500, counted(32, 96)),
]
COMPUTING = [("copy_convert_fusion", 900, counted(33, 96)), ("transpose_add_fusion", 400, "")]


def scoped(name: str, us: float, primitive: str) -> tuple[str, float, str]:
    return name, us, f"scope=jit(f)/jvp()/{primitive}"


def small_programs(
    count: int, us: float = 50, every: float = 200, name: str = "multiply", more: str = ""
) -> str:
    calls = [program(name, 1000 + every * n, 1000 + every * n + us) for n in range(count)]
    return of_jax(*calls, more)


def donating(could: int, whole: int) -> dict[str, Any]:
    return JAX | {
        "properties": {"programs": {"jit_f": {"argument_bytes": whole, "could_donate_bytes": could}}}
    }


# -- gradients

CALLS = f"""
    main | 10 90 | stepscope.module: net
    main | 20 80 | aten::mm | seq=7
    main | 110 190 | stepscope.module: net
    main | 120 {{end}} | aten::mm | seq=8
    main | 210 290 | stepscope.module: frozen
    main | 220 280 | aten::mm | seq=9
    main | 310 390 | stepscope.module: net
    main | 320 380 | aten::mm
    main | 400 480 | stepscope.module: net
    main | 410 470 | aten::relu | seq=10
    main | 500 600 | {NODE} MmBackward0 | seq=7 fwd=1
    main | 510 590 | aten::mm
    main | 700 800 | Optimizer.step#SGD.step
"""


def calls(end: float = 180, us: float = 1000) -> str:
    return repeated(CALLS.format(end=end), us)


# A trunk and two heads; the second loss goes back through the trunk again.
LOSSES = f"""
    main | 10 100 | stepscope.module: net.trunk
    main | 20 90 | aten::mm | seq=1
    main | 110 130 | aten::mean | seq=2
    main | 140 160 | aten::sum | seq=3
    main | 170 180 | Optimizer.zero_grad#SGD.zero_grad
    main | 200 210 | {NODE} MeanBackward0 | seq=2 fwd=1
    main | 220 320 | {NODE} MmBackward0 | seq=1 fwd=1
    main | 330 350 | {NODE} torch::autograd::AccumulateGrad
    main | 335 345 | aten::add_
    main | 400 410 | {NODE} SumBackward0 | seq=3 fwd=1
    main | 420 {{end}} | {NODE} MmBackward0 | seq=1 fwd=1
    main | 530 560 | {NODE} torch::autograd::AccumulateGrad
    main | 540 550 | aten::add_
    main | 570 580 | {NODE} torch::autograd::AccumulateGrad
    main | 572 575 | aten::detach
    main | 910 940 | Optimizer.step#SGD.step
"""
EXCHANGES = f"""
    main | 0 90 | aten::mm | seq=1
    main | 100 130 | {NODE} MmBackward0 | seq=1 fwd=1
    main | 130 195 | {NODE} torch::autograd::AccumulateGrad
    main | 131 134 | c10d::allreduce_
    gloo | 134 {{end}} | gloo:all_reduce
    main | 200 290 | aten::mm | seq=2
    main | 300 330 | {NODE} MmBackward0 | seq=2 fwd=1
    main | 330 395 | {NODE} torch::autograd::AccumulateGrad
    main | 331 334 | c10d::allreduce_
    gloo | 334 394 | gloo:all_reduce
    main | 400 490 | Optimizer.step#SGD.step
    gloo | 420 440 | gloo:all_reduce
"""


def exchanges(end: float = 194, us: float = 500) -> str:
    return repeated(EXCHANGES.format(end=end), us)


# -- loops


def modules(
    count: int, us: float = 8, product: str = "aten::linear", length: float = 1600, more: str = ""
) -> str:
    """Each row alone through a layer: an element, a product, 10 us of Python between; then backward."""
    lines, at = [], 10.0
    for number in range(count):
        lines += [
            f"main | {at} {at + 5} | aten::select",
            f"main | {at + 15} {at + 17 + us} | stepscope.module: layer",
            f"main | {at + 16} {at + 16 + us} | {product} | seq={number + 1}",
        ]
        at += 30 + us
    for number in reversed(range(count)):
        lines.append(f"main | {at} {at + 20} | {NODE} MmBackward0 | seq={number + 1} fwd=1")
        at += 20
    return repeated("\n".join([*lines, more]), length)


def reads(count: int, *between: str, every: float = 20) -> str:
    """A value read after each of some operators in turn."""
    lines = ["main | 1 4 | aten::relu | cat=annotation"]
    for turn in range(count):
        at = 10 + every * turn
        lines.append(f"main | {at} {at + 15} | {between[turn % len(between)]}")
        lines.append(f"main | {at + 16} {at + 17} | aten::item")
    lines.append("main | 970 971 | aten::nonzero")
    return repeated("\n".join(lines))


def experts(count: int, rows: str = "varied", weights: int = 99, gathers: int = 99, columns: int = 64) -> str:
    """Products of some weights of one size, each after indexing, in modules of their own."""
    lines, at = [], 10.0
    for number in range(count):
        size = {"varied": 16 + 3 * number, "one": 1, "equal": 64}[rows]
        dims = f"Input_Dims=[[{size},{columns}],[{columns},64]]"
        lines += [
            f"main | {at} {at + 4} | {'aten::index' if number < gathers else 'aten::relu'}",
            f"main | {at + 5} {at + 21} | stepscope.module: layers.{number % weights}",
            f"main | {at + 6} {at + 20} | aten::mm | seq={number} {dims}",
        ]
        at += 25
    for number in reversed(range(count)):
        lines.append(f"main | {at} {at + 10} | {NODE} MmBackward0 | seq={number} fwd=1")
        at += 10
    return repeated("\n".join(lines), 2000)


def chains(operators: int, us: float = 4, between: str = "", count: int = 6) -> str:
    """Layers of a product and elementwise operators, then the backward pass of these."""
    lines, at, sequence, nodes = [], 10.0, 0, list[str]()
    for _ in range(count):
        lines.append(f"main | {at} {at + 20} | aten::mm")
        at += 22
        for _ in range(operators):
            sequence += 1
            lines.append(f"main | {at} {at + us} | aten::mul | seq={sequence}")
            nodes.insert(0, f"seq={sequence} fwd=1")
            at += us + 2
            if between:
                lines.append(f"main | {at} {at + 1} | {between}")
                at += 2
    lines.append(f"main | {at} {at + 20} | aten::mm")
    at += 22
    for place, link in enumerate(nodes):
        lines.append(f"main | {at} {at + us + 2} | {NODE} MulBackward0 | {link}")
        at += us + 4
        if place % operators == operators - 1:
            lines.append(f"main | {at} {at + 20} | aten::mm")
            at += 22
    return repeated("\n".join(lines), 2000)


# -- batches

SMALL = f"""
    main | 10 30 | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__
    main | 910 915 | aten::linear | Input_Dims=[[{{rows}},512],[512,512]] seq=1
    main | 920 {{end}} | aten::relu
    main | 950 955 | {NODE} LinearBackward0 | seq=1 fwd=1
"""


def small(rows: str, work_us: float = 19) -> str:
    return repeated(SMALL.format(rows=rows, end=920 + work_us))


# -- types


def slow(type: str, us: float = 70_000, dims: str = "[[512,512],[512,512]]", name: str = "aten::mm") -> str:
    return repeated(
        f'main | 100 {100 + us} | {name} | Input_Dims={dims} Input_type=["{type}","{type}"]', 100_000
    )


# -- layouts

CONVOLUTION = f"""
    main | 10 20 | aten::convolution | seq=1 Input_Dims=[[8,3,32,32],[16,3,3,3]]
    main | 900 910 | {NODE} ConvolutionBackward0 | seq=1 fwd=1
"""
NCHW, NHWC = "[3072,1024,32,1]", "[3072,1,96,3]"
SIZE = "[8,3,32,32]"


def copies(count: int, first: str = NCHW, second: str = NHWC, size: str = SIZE, other: str = SIZE) -> str:
    shapes = f"Input_Dims=[{size},{other}] Input_Strides=[{first},{second}]"
    lines = [f"main | {at} {at + 50} | aten::copy_ | {shapes}" for at in range(100, 100 + 60 * count, 60)]
    return repeated("\n".join([CONVOLUTION, *lines]))


# -- attention


def attention(us: float, middle: str = "aten::softmax", more: str = "", name: str = "aten::bmm") -> str:
    end = 200 + us
    return repeated(
        f"""
        main | 10 100 | {name} | seq=1
        main | 110 120 | aten::div | seq=2
        main | 200 {end} | {middle} | seq=3
        main | {end} {end + 20} | {name} | seq=4
        {more}
        main | 900 920 | {NODE} SoftmaxBackward0 | seq=3 fwd=1
        main | 930 940 | aten::relu
        """
    )


FREE = f"""
    main | 5 520 | stepscope.module: net
    main | 10 20 | aten::arange
    main | 25 {{end}} | aten::triu
    main | {{end}} 320 | aten::randn
    main | 400 500 | aten::mm | seq=1
    main | 510 515 | aten::sum | seq=2
    main | 700 705 | {NODE} SumBackward0 | seq=2 fwd=1
    main | 710 800 | {NODE} MmBackward0 | seq=1 fwd=1
    main | 900 950 | Optimizer.step#SGD.step
"""
ZEROING = """
    main | 10 500 | Optimizer.zero_grad#SGD.zero_grad
    main | 20 200 | aten::zero_
    main | 30 40 | aten::fill_
    main | 210 300 | aten::zero_
    main | 310 320 | aten::sum
    main | 600 610 | aten::mm | seq=1
    main | 700 750 | autograd::engine::evaluate_function: torch::autograd::AccumulateGrad
    main | 710 740 | aten::add_
    main | 800 850 | autograd::engine::evaluate_function: MmBackward0 | seq=1 fwd=1
    main | 810 840 | aten::add_
"""
ONE_HOT = f"""
    main | 10 700 | stepscope.module: net
    main | 20 200 | aten::one_hot | Input_Dims=[[4,6],[]]
    main | 210 {{end}} | aten::to | Input_Dims=[[4,6,50],[],[],[],[]]
    main | 310 400 | aten::linear | Input_Dims={{product}} seq=1
    main | 410 420 | aten::sum | seq=2
    main | 430 440 | aten::one_hot | Input_Dims=[[4,7],[]]
    main | 450 460 | aten::to | Input_Dims=[[5,6,51],[],[],[],[]]
    main | 470 480 | aten::linear | Input_Dims=[[5,6,51],[8,51],[]] seq=3
    main | 730 740 | {NODE} SumBackward0 | seq=2 fwd=1
    main | 750 900 | {NODE} MmBackward0 | seq=1 fwd=1
    main | 910 940 | Optimizer.step#SGD.step
"""
LOADING = """
    main | 10 800 | enumerate(DataLoader)#_{kind}DataLoaderIter.__next__
    main | 20 420 | PIL/Image.py(3000): open
    main | 430 630 | torch/utils/data/_utils/collate.py(100): default_collate
    main | 440 540 | torchvision/transforms/functional.py(300): resize
    main | 640 {end} | tokenizers/tokenize.py(3): tokenize
    main | 720 750 | h5py/files.py(3): read
    main | 810 990 | aten::mm
"""


def loading(kind: str = "MultiProcessing", end: float = 700, us: float = 1000) -> str:
    return repeated(LOADING.format(kind=kind, end=end), us)


def waiting(us: float) -> str:
    return repeated(
        f"main | 10 {10 + us} | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__\n"
        "main | 810 990 | aten::mm"
    )


RECOMPUTED = f"""
    main | 10 200 | stepscope.module: net
    main | 20 190 | aten::addmm | seq=1
    main | 300 600 | {NODE} CheckpointBackward | seq=2 fwd=1
    main | 310 {{end}} | stepscope.module: net
    main | 311 312 | aten::addmm | seq=3
    main | 490 590 | {NODE} AddmmBackward0 | seq=3 fwd=1
    main | 700 800 | Optimizer.step#SGD.step
"""


def loader(cores: int = 2, workers: int = 0, in_loop: bool = False, **facts: Any) -> dict[str, Any]:
    """A capture with the loaders of a run, and the line that creates the only one."""
    call = "DataLoader(data, batch_size=16)"
    created = {"what": "loader", "class": "DataLoader", "file": "train.py", "line": 1, "in_loop": in_loop}
    capture = {
        "cpus_usable": cores,
        "cpu_count": cores,
        "loaders": [{"workers": workers}, {"workers": None}],
        "created": [created | {"call": call, "source": f"loader = {call}"}],
    }
    return {"capture": capture | facts}


def alone_loading(us: float = 9000, more: str = "", length: float = 10_000) -> str:
    """Steps whose loop loads its batches itself."""
    return repeated(
        f"""
        main | 10 {10 + us} | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
        main | 9100 9200 | aten::mm | seq=1
        main | 9300 9400 | {NODE} MmBackward0 | seq=1 fwd=1
        main | 9500 9600 | Optimizer.step#SGD.step
        {more}
        """,
        length,
    )


BY_WORKERS = alone_loading().replace("_SingleProcess", "_MultiProcessing")
COMPUTED = {"recorded_steps": {"parts": {"data_loading": {"cpu_ns": 20, "median_ns": 100}}}}


def later(loading_ms: float, rest_ms: float) -> dict[str, Any]:
    """A capture with the mean times of the steps after the recording."""
    times = {"data_loading": loading_ms, "rest": rest_ms}
    parts = {name: {"recurring_ns": round(ms * 1e6)} for name, ms in times.items()}
    return loader(unrecorded_steps={"count": 20, "median_ns": 50_000_000, "parts": parts})


COMPILED = """
    main | 10 800 | _compile.compile_inner (dynamo_timed) | cat=annotation
    main | 20 700 | _compile.compile_inner (dynamo_timed) | cat=annotation
    main | 810 900 | aten::mm
"""
CASES = {
    "loading on 2 cores": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 5 of 10 ms, 3.36 to 5.5
        what-if dataloader, with 2 workers
        dataloader:workers=2,computing=1.00
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=2, persistent_workers=True)
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(),
    ),
    "loading on 16 cores": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 8.875 of 10 ms, 6.46 to 9
        what-if dataloader, with 8 workers
        dataloader:workers=8,computing=1.00
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=8, persistent_workers=True)
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(16),
    ),
    "loading on 1 core": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Workers would share 1 core with the training loop and save little.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(1),
    ),
    "loading that waits": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 5.5 of 10 ms, 4.23 to 6.05
        what-if dataloader, with 2 workers
        dataloader:workers=2,computing=0.20
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=2, persistent_workers=True)
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(**COMPUTED),
    ),
    "loading in a loop over epochs": Case(
        "input_bound",
        alone_loading(),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Create the DataLoader once, before the loop over epochs: else its workers start again
        in each.
        critical: 5 of 10 ms, 3.36 to 5.5
        what-if dataloader, with 2 workers
        dataloader:workers=2,computing=1.00
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(in_loop=True),
    ),
    "loading faster than from workers": Case(
        "input_bound",
        alone_loading(499, length=9700),
        """
        The training loop waits 5% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Index whole batches instead of samples: keep the data in one tensor and index that.
        warning: 0.499 of 9.7 ms, 0 to 0.499
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 0.499 ms, data_loading
        """,
        metadata=loader(),
    ),
    "loading slower than from workers": Case(
        "input_bound",
        alone_loading(500, length=9700),
        """
        The training loop waits 5% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        warning: 0.5 of 9.7 ms, 0 to 0.5
        what-if dataloader, with 2 workers
        dataloader:workers=2,computing=1.00
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=2, persistent_workers=True)
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 0.5 ms, data_loading
        """,
        metadata=loader(),
    ),
    "loading by 1 of 2 workers": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> Give the DataLoader more workers or a larger prefetch_factor.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(workers=1),
    ),
    "loading by 2 workers": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> The workers have all of 2 cores: more help only where they wait for a disk.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(workers=2),
    ),
    "loading of a stream": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> Let each worker read its own part of the IterableDataset
        (torch.utils.data.get_worker_info).
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(loaders=[{"workers": 2, "iterable": True}]),
    ),
    "loading of a stream by 1 worker": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> Give the DataLoader more workers or a larger prefetch_factor.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(loaders=[{"workers": 1, "iterable": True}]),
    ),
    "starting workers": Case(
        "input_bound",
        repeated(
            "main | 10 800 | enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__\n"
            "main | 20 500 | multiprocessing/popen_fork.py(3): run"
        ),
        """
        The loop waits 79% of the step while batches load.
        Most of it is starting workers (61%).
        -> Give the DataLoader more workers or a larger prefetch_factor.
        critical: 0.79 of 1 ms, 0 to 0.79
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 0.79 ms, data_loading
        """,
    ),
    "loading in JAX": Case(
        "input_bound",
        BY_WORKERS,
        """
        The training loop waits 90% of the step while batches load.
        -> Load the next batch while the step runs, in another thread or process.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader() | JAX,
    ),
    "loading in transformers": Case(
        "input_bound",
        alone_loading(more="main | 1 9990 | transformers/trainer.py(3): fit | cat=python"),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Raise dataloader_num_workers in TrainingArguments, and set
        dataloader_persistent_workers=True.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        transformers/trainer.py:3 in fit
        """,
    ),
    "loading in keras": Case(
        "input_bound",
        alone_loading(more="main | 1 9990 | keras/src/trainer.py(3): fit | cat=python"),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Raise workers in PyDataset, with use_multiprocessing=True.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        keras/src/trainer.py:3 in fit
        """,
    ),
    "loading in timm": Case(
        "input_bound",
        alone_loading(more="main | 1 9990 | timm/data/loader.py(3): fit | cat=python"),
        """
        The training loop waits 90% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Raise --workers.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 9 ms, data_loading
        timm/data/loader.py:3 in fit
        """,
    ),
    "loading after the recording": Case(
        "input_bound",
        alone_loading(100),
        """
        The training loop waits 1% of the step while batches load.
        They load in the main process (num_workers=0).
        Later steps load or wait for 60% (6 ms of 10 ms); the recorded ones load less.
        -> Index whole batches instead of samples: keep the data in one tensor and index that.
        critical: 6 of 10 ms, 0 to 6
        at most the share that the steps after the recording wait
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 0.1 ms, data_loading
        """,
        metadata=later(6, 4),
    ),
    "waits after the recording": Case(
        "input_bound",
        alone_loading(100).replace("_SingleProcess", "_MultiProcessing"),
        """
        The training loop waits 1% of the step while batches load.
        Later steps load or wait for 60% (6 ms of 10 ms); the recorded ones found batches that
        were ready.
        -> Give the DataLoader more workers or a larger prefetch_factor.
        critical: 6 of 10 ms, 0 to 6
        at most the share that the steps after the recording wait
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 0.1 ms, data_loading
        """,
        metadata=later(6, 4),
    ),
    "more workers than cores": Case(
        "too_many_workers",
        BY_WORKERS,
        """
        3 data-loader workers share 2 CPU cores.
        -> Set num_workers to at most 2: workers without a core slow down the others and the
        training loop.
        critical: 9 of 10 ms, 0 to 9
        what-if dataloader, at most: with batches that are always ready
        dataloader
        - loader = DataLoader(data, batch_size=16) + loader = DataLoader(data, batch_size=16,
        num_workers=2)
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 9 ms, data_loading
        """,
        metadata=loader(workers=3),
    ),
    "copies that move": Case(
        "copy_fusions",
        moving(*COUNTED, *COMPUTING),
        """
        Each step transposes, copies or converts arrays 2 times, 3.5 ms.
        They compute nothing.
        Most is in net.py:7 in f.
        -> The profile does not show what asks for most of them; XLA may have inserted them.
        warning: 3.5 of 20 ms, 0 to 3.5
        at most the time of these operations
        scale:select=operator=copy.1,factor=0 + scale:select=operator=wrapped_convert,factor=0
        * copy.1 × 1, 3 ms, other net.py:7 in f
        * wrapped_convert × 1, 0.5 ms, other net.py:7 in f
        """,
        metadata=JAX,
    ),
    "copies that are asked for": Case(
        "copy_fusions",
        moving(
            scoped("copy.1", 2000, "dot_general"),
            scoped("copy.2", 1000, "transpose"),
            scoped("copy.3", 1000, "reshape"),
        ),
        """
        Each step transposes, copies or converts arrays 3 times, 4 ms.
        They compute nothing.
        Most is in net.py:7 in f.
        -> Keep one order of dimensions and one type throughout.
        critical: 4 of 20 ms, 0 to 4
        at most the time of these operations
        scale:select=operator=copy.1,factor=0 + scale:select=operator=copy.2,factor=0 +
        scale:select=operator=copy.3,factor=0
        * copy.1 × 1, 2 ms, forward net.py:7 in f
        * copy.2 × 1, 1 ms, forward net.py:7 in f
        * copy.3 × 1, 1 ms, forward net.py:7 in f
        """,
        metadata=JAX,
    ),
    "copies that are inserted": Case(
        "copy_fusions",
        moving(
            scoped("copy.1", 2002, "dot_general"),
            scoped("copy.2", 1000, "transpose"),
            scoped("copy.3", 1000, "reshape"),
        ),
        """
        Each step transposes, copies or converts arrays 3 times, 4 ms.
        They compute nothing.
        Most is in net.py:7 in f.
        -> No line asks for most of them: XLA inserted them for the order of dimensions of
        dot_general.
        critical: 4.002 of 20 ms, 0 to 4.002
        at most the time of these operations
        scale:select=operator=copy.1,factor=0 + scale:select=operator=copy.2,factor=0 +
        scale:select=operator=copy.3,factor=0
        * copy.1 × 1, 2.002 ms, forward net.py:7 in f
        * copy.2 × 1, 1 ms, forward net.py:7 in f
        * copy.3 × 1, 1 ms, forward net.py:7 in f
        """,
        metadata=JAX,
    ),
    "copies half of which are unknown": Case(
        "copy_fusions",
        moving(("copy.1", 2000, ""), scoped("copy.2", 2000, "transpose")),
        """
        Each step transposes, copies or converts arrays 2 times, 4 ms.
        They compute nothing.
        Most is in net.py:7 in f.
        -> Keep one order of dimensions and one type throughout.
        critical: 4 of 20 ms, 0 to 4
        at most the time of these operations
        scale:select=operator=copy.1,factor=0 + scale:select=operator=copy.2,factor=0
        * copy.1 × 1, 2 ms, other net.py:7 in f
        * copy.2 × 1, 2 ms, forward net.py:7 in f
        """,
        metadata=JAX,
    ),
    "small programs": Case(
        "small_programs",
        small_programs(20, more=program("f", 10, 900) + "main | 1060 1160 | wait: float(x) | cat=runtime\n"),
        """
        Each step starts 20 small programs one by one, 1 ms.
        Mostly multiply.
        -> Move these operations into the jitted step, or into one function under jax.jit.
        warning: 3.75 of 20 ms, 0 to 3.75
        at most the time of these calls, with the Python between; a step that is all under one
        jax.jit saves the time between its other calls too
        * PjitFunction(multiply) × 20, 1 ms, other net.py:7 in multiply
        """,
        metadata=JAX,
    ),
    "callbacks": Case(
        "host_callbacks",
        of_jax(program("f", 0, 4000, "pure_callback.1"), program("f", 5000, 5100, "debug_callback_of_mine")),
        """
        The compiled step calls back into Python once, 2 ms.
        The device's data are copied to the host for it.
        -> Return the value from the step and read it every N steps.
        warning: 2 of 20 ms, 0 to 2
        at most the time of the callbacks
        scale:select=operator=pure_callback.1,factor=0
        * pure_callback.1 × 1, 2 ms, other net.py:7 in f
        """,
        metadata=JAX,
    ),
    "a donation": Case(
        "missing_donation",
        of_jax(program("f", 0, 4000)),
        """
        f returns 40 MB of its arguments' shapes in new memory.
        The old values stay allocated meanwhile.
        -> Pass donate_argnums or donate_argnames to jax.jit if the program does not use the old
        values again.
        info: 0 of 20 ms, 0 to 0
        up to 40 MB of memory, no time
        * PjitFunction(f) × 1, 4 ms, other net.py:7 in f
        """,
        metadata=donating(40_000_000, 44_000_000),
    ),
    "a compilation": Case(
        "recompilation",
        repeated(COMPILED),
        """
        torch.compile compiles once per step, 0.79 ms.
        -> A value that the compiler assumed constant changes (TORCH_LOGS=recompiles shows which).
        critical: 0.79 of 1 ms, 0 to 0.79
        at most the compile time
        scale:select=operator=_compile.compile_inner (dynamo_timed),factor=0
        * _compile.compile_inner (dynamo_timed) × 1, 0.79 ms, forward
        """,
    ),
    "a compilation in JAX": Case(
        "recompilation",
        of_jax(program("f", 0, 4000), "main | 10 900 | backend_compile_and_load | cat=annotation\n"),
        """
        jax.jit compiles once per step, 0.89 ms.
        Mostly f.
        See net.py:7 in f.
        -> Shapes, types or static arguments change between calls, or the function is created
        again.
        info: 0.89 of 20 ms, 0 to 0.89
        at most the compile time
        scale:select=operator=backend_compile_and_load,factor=0
        * backend_compile_and_load × 1, 0.89 ms, other net.py:7 in f
        """,
        metadata=JAX,
    ),
    "calls without backward": Case(
        "forward_without_backward",
        calls(),
        """
        Trained modules run without backward once per step, 0.08 ms.
        Gradients are enabled there.
        -> If these calls evaluate, put them under torch.inference_mode(), and evaluate less
        often; else put them under torch.no_grad().
        warning: 0.08 of 1 ms, 0 to 0.08
        at most the time of these calls, if not each step needs them
        * stepscope.module: net × 1, 0.08 ms, forward net
        """,
    ),
    "two losses": Case(
        "repeated_backward",
        repeated(LOSSES.format(end=520)),
        """
        Backward goes through the same operators 2 times per update.
        All but one of these passes take 0.14 ms per step.
        Most is in net.trunk.
        -> Add up the losses and call backward() once, without retain_graph=True.
        warning: 0.17 of 1 ms, 0 to 0.2295
        all but one of these passes
        * autograd::engine::evaluate_function: MmBackward0 × 1, 0.1 ms, backward net.trunk
        * autograd::engine::evaluate_function: torch::autograd::AccumulateGrad × 2, 0.04 ms,
        backward net.trunk
        """,
    ),
    "exchanges of each pass": Case(
        "exchange_per_pass",
        exchanges(),
        """
        Gradients are exchanged after each of 2 backward passes per update.
        -> Exchange them after the last pass alone: run forward and backward of the others under
        model.no_sync() of DistributedDataParallel.
        warning: 0.065 of 0.5 ms, 0 to 0.065
        at most the time of these exchanges, and of the hooks that start them
        * gloo:all_reduce × 1, 0.06 ms, backward
        """,
    ),
    "a module called again and again": Case(
        "repeated_module",
        modules(16),
        """
        A module is called 16 times per step with little work each.
        See layer.
        -> If no call needs an earlier one's result, stack inputs along the batch dimension and
        call it once.
        warning: 0.855 of 1.6 ms, 0.513 to 0.855
        all calls of the loop and of its backward pass, but one
        * aten::linear × 16, 0.128 ms, forward layer
        """,
        metadata={"model": LAYER},
    ),
    "reads": Case(
        "synchronizing_calls",
        reads(40, "aten::argmax", "aten::eq"),
        """
        Each step calls .item(), float(), bool() or `if` 40 times.
        They take 0.04 ms; on a GPU each blocks the CPU.
        -> Keep the value in a tensor, and read it only every N steps.
        critical: 0.801 of 1 ms, 0.4005 to 0.801
        at most the time of the loops around them
        * aten::item × 40, 0.04 ms, forward
        """,
    ),
    "reads of sizes": Case(
        "synchronizing_calls",
        reads(40, "aten::argmax").replace("aten::item", "aten::nonzero"),
        """
        Each step calls nonzero, boolean-mask indexing or unique 41 times.
        They take 0.041 ms; on a GPU each blocks the CPU.
        -> Only the device knows the size of the result.
        critical: 0.812 of 1 ms, 0.406 to 0.812
        at most the time of the loops around them
        * aten::nonzero × 41, 0.041 ms, forward
        """,
    ),
    "reads in an update": Case(
        "synchronizing_calls", repeated("main | 5 990 | ## optimizer ##") + "\n" + reads(40, "aten::mul_")
    ),
    "reads of what a model computes": Case(
        "synchronizing_calls",
        reads(40, "aten::addmm", "aten::argmax"),
        """
        Each step calls .item(), float(), bool() or `if` 40 times.
        They take 0.04 ms; on a GPU each blocks the CPU.
        -> Keep the value in a tensor, and read it only every N steps.
        info: 0.04 of 1 ms, 0.02 to 0.04
        at most the time of the loops around them
        * aten::item × 40, 0.04 ms, forward
        """,
    ),
    "experts": Case(
        "expert_loop",
        experts(16),
        """
        Experts run one after the other: 16 matrix products per step.
        They have 16 to 61 rows.
        Most is in layers.0.
        -> Sort the tokens by expert and multiply them in one call: torch.nn.functional.grouped_mm
        (torch._grouped_mm before PyTorch 2.10), or MegaBlocks.
        critical: 0.519375 of 2 ms, 0 to 0.519375
        all calls of the loop and of its backward pass, at most
        * aten::mm × 1, 0.014 ms, forward layers.0
        * aten::mm × 1, 0.014 ms, forward layers.1
        * aten::mm × 1, 0.014 ms, forward layers.10
        * aten::mm × 1, 0.014 ms, forward layers.11
        * aten::mm × 1, 0.014 ms, forward layers.12
        * aten::mm × 1, 0.014 ms, forward layers.13
        * aten::mm × 1, 0.014 ms, forward layers.14
        * aten::mm × 1, 0.014 ms, forward layers.15
        * aten::mm × 1, 0.014 ms, forward layers.2
        * aten::mm × 1, 0.014 ms, forward layers.3
        * aten::mm × 1, 0.014 ms, forward layers.4
        * aten::mm × 1, 0.014 ms, forward layers.5
        * aten::mm × 1, 0.014 ms, forward layers.6
        * aten::mm × 1, 0.014 ms, forward layers.7
        * aten::mm × 1, 0.014 ms, forward layers.8
        * aten::mm × 1, 0.014 ms, forward layers.9
        """,
    ),
    "experts by name": Case(
        "expert_loop",
        experts(16, "one", 2).replace("layers.", "experts."),
        """
        Experts run one after the other: 16 matrix products per step.
        Each has 1 row.
        Most is in experts.0.
        -> Sort the tokens by expert and multiply them in one call: torch.nn.functional.grouped_mm
        (torch._grouped_mm before PyTorch 2.10), or MegaBlocks.
        critical: 0.519375 of 2 ms, 0.3878 to 0.519375
        all calls of the loop and of its backward pass, at most
        * aten::mm × 8, 0.112 ms, forward experts.0
        * aten::mm × 8, 0.112 ms, forward experts.1
        """,
        metadata={"model": EXPERTS},
    ),
    "chains": Case(
        "kernel_fusion",
        chains(4),
        """
        48 small elementwise operators per step, 5 µs each.
        They run in 12 chains.
        -> Fuse them: apply torch.compile to the model or to this function.
        warning: 0.252 of 2 ms, 0.126 to 0.252
        if each chain took as long as its longest operator
        * autograd::engine::evaluate_function: MulBackward0 × 24, 0.144 ms, backward
        * aten::mul × 24, 0.096 ms, forward
        """,
    ),
    "chains with views": Case(
        "kernel_fusion",
        chains(4, between="aten::view"),
        """
        48 small elementwise operators per step, 5 µs each.
        They run in 12 chains.
        -> Fuse them: apply torch.compile to the model or to this function.
        warning: 0.252 of 2 ms, 0.126 to 0.252
        if each chain took as long as its longest operator
        * autograd::engine::evaluate_function: MulBackward0 × 24, 0.144 ms, backward
        * aten::mul × 24, 0.096 ms, forward
        """,
    ),
    "chains of long operators": Case(
        "kernel_fusion",
        chains(4, 20),
        """
        Chains of elementwise operators take 1.01 ms per step (50%).
        Each of 48 operators reads and writes its whole tensor.
        -> Fuse them: apply torch.compile to the model or to this function.
        critical: 0.828 of 2 ms, 0.414 to 0.828
        if each chain took as long as its longest operator
        * autograd::engine::evaluate_function: MulBackward0 × 24, 0.528 ms, backward
        * aten::mul × 24, 0.48 ms, forward
        """,
    ),
    "a batch of 8 with some work": Case(
        "small_batch",
        small("8", 25),
        """
        Batches have 8 rows; 96% of the step is fixed overhead.
        It does not grow with the batch.
        -> Use larger batches (and scale the learning rate), or pack several samples into one.
        critical: 0.955 of 1 ms, 0.4775 to 1
        per sample: the overhead is shared by more samples
        * aten::linear × 1, 0.005 ms, forward
        """,
    ),
    "a batch of 8": Case(
        "small_batch",
        small("8"),
        """
        Batches have 8 rows; 98% of the step is fixed overhead.
        It does not grow with the batch.
        -> Use larger batches (and scale the learning rate), or pack several samples into one.
        critical: 0.98 of 1 ms, 0.49 to 1
        per sample: the overhead is shared by more samples
        * aten::linear × 1, 0.005 ms, forward
        """,
    ),
    "BF16": Case(
        "slow_fallback",
        slow("c10::BFloat16"),
        """
        Products in BF16 are slow on this CPU, 70 ms per step.
        It has no fast instructions for BF16; products and convolutions run at 3.83 GFLOP/s.
        -> Compute in FP32 on this CPU: without torch.autocast, or with the model and its inputs
        converted by .float().
        critical: 56.578227 of 100 ms, 43.156454 to 64.631291
        simulated, at 20 GFLOP/s in FP32
        * aten::mm × 1, 70 ms, forward
        """,
    ),
    "FP16 in JAX": Case(
        "slow_fallback",
        slow("c10::Half"),
        """
        Products in FP16 are slow on this CPU, 70 ms per step.
        It has no fast instructions for FP16; products and convolutions run at 3.83 GFLOP/s.
        -> Compute in FP32 on this CPU: without torch.autocast, or with the model and its inputs
        converted by .float().
        critical: 56.578227 of 100 ms, 43.156454 to 64.631291
        simulated, at 20 GFLOP/s in FP32
        * aten::mm × 1, 70 ms, forward
        """,
        metadata=JAX,
    ),
    "a fallback by name": Case(
        "slow_fallback",
        slow("float", name="aten::_slow_conv2d_forward", dims="null"),
        """
        aten::_slow_conv2d_forward is a slow fallback of the library, 70 ms per step.
        -> Use FP32 and a batch of more than one image; both suit a fast convolution.
        critical: 35 of 100 ms, 0 to 35
        simulated, if a fast one took half as long
        * aten::_slow_conv2d_forward × 1, 70 ms, forward
        """,
    ),
    "products of doubles": Case(
        "fp64_matmul",
        slow("double") + "\n" + slow("double", 20_000, name="aten::exp"),
        """
        Matrix products and convolutions compute in FP64, 50 ms per step.
        -> If the accuracy of FP32 is enough, convert the model and its inputs with .float().
        critical: 35 of 100 ms, 35 to 52.5
        simulated, if FP32 took half as long
        * aten::mm × 1, 70 ms, forward
        """,
    ),
    "copies to another layout": Case(
        "layout_conversions",
        copies(4),
        """
        Each step converts layouts around convolutions 4 times, 0.2 ms.
        -> Keep one layout throughout: model.to(memory_format=torch.channels_last), the same for
        the input, and layers that preserve it.
        critical: 0.2 of 1 ms, 0 to 0.2
        at most the time of these copies
        * aten::copy_ × 4, 0.2 ms, forward
        """,
    ),
    "attention": Case(
        "unfused_attention",
        attention(100),
        """
        Attention writes its matrix of scores to memory, 0.13 ms per step.
        That is softmax and the elementwise work around it.
        -> Use F.scaled_dot_product_attention, which does not write the attention matrix to
        memory.
        warning: 0.13 of 1 ms, 0 to 0.24
        simulated, as if the softmax and what is around it took no time
        * aten::softmax × 1, 0.1 ms, forward
        * autograd::engine::evaluate_function: SoftmaxBackward0 × 1, 0.02 ms, backward
        * aten::div × 1, 0.01 ms, forward
        """,
    ),
    "the math kernel": Case(
        "unfused_attention",
        attention(
            100, "aten::_scaled_dot_product_attention_math", "main | 210 230 | aten::dropout", "aten::relu"
        ),
        """
        Attention writes its matrix of scores to memory, 0.12 ms per step.
        That is softmax and the elementwise work around it.
        -> F.scaled_dot_product_attention falls back to its math kernel because of dropout.
        warning: 0.12 of 1 ms, 0 to 0.12
        simulated, at most: a fused kernel that computes the softmax in passing
        * aten::_scaled_dot_product_attention_math × 1, 0.1 ms, forward
        * autograd::engine::evaluate_function: SoftmaxBackward0 × 1, 0.02 ms, backward
        """,
    ),
    "what trains nothing": Case(
        "work_without_gradient",
        repeated(FREE.format(end=200)),
        """
        Forward operators that train nothing take 0.19 ms per step (19%).
        Most is in net.
        Longest: aten::triu once, aten::arange once.
        -> Compute once, before the loop, what does not change between steps (masks, tables, a
        graph's structure).
        warning: 0.19 of 1 ms, 0.095 to 0.285
        at most their time, with the Python between
        * aten::triu × 1, 0.175 ms, forward net
        * aten::arange × 1, 0.01 ms, forward net
        """,
    ),
    "zeros": Case(
        "zero_grad_memset",
        repeated(ZEROING),
        """
        2 operators per step fill gradients with zeros.
        -> Release gradients instead: optimizer.zero_grad(set_to_none=True), the default since
        PyTorch 2.0.
        critical: 0.3 of 1 ms, 0 to 0.3
        simulated, if gradients were neither zeroed nor added to
        * aten::zero_ × 2, 0.27 ms, zero_grad
        """,
    ),
    "one-hot rows": Case(
        "one_hot_product",
        repeated(ONE_HOT.format(end=300, product="[[4,6,50],[8,50],[]]")),
        """
        One-hot rows are multiplied with a weight, 0.51 ms per step.
        Most is in net.
        -> Look the rows up: nn.Embedding(classes, width) in place of the Linear layer, or
        F.embedding(indices, weight.t()).
        critical: 0.51 of 1 ms, 0.357 to 0.51
        simulated, one-hot rows, their product, and its gradient
        * aten::one_hot × 1, 0.18 ms, forward net
        * autograd::engine::evaluate_function: MmBackward0 × 1, 0.15 ms, backward net
        * aten::to × 1, 0.09 ms, forward net
        * aten::linear × 1, 0.09 ms, forward net
        """,
    ),
    "loading": Case(
        "input_bound",
        loading(),
        """
        The loop waits 79% of the step while batches load.
        Most of it is decoding (51%), then collating (13%), augmenting (13%).
        -> Give the DataLoader more workers or a larger prefetch_factor.
        critical: 0.79 of 1 ms, 0 to 0.79
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__ × 1, 0.79 ms, data_loading
        """,
    ),
    "loading in the main process": Case(
        "input_bound",
        loading("SingleProcess"),
        """
        The loop waits 79% of the step while batches load.
        They load in the main process (num_workers=0).
        Most of it is decoding (51%), then collating (13%), augmenting (13%).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 0.79 of 1 ms, 0 to 0.79
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 0.79 ms, data_loading
        """,
    ),
    "a forward pass again": Case(
        "recomputation",
        repeated(RECOMPUTED.format(end=480)),
        """
        Checkpointing computes forward passes again, 0.17 ms per step (17%).
        See net.
        -> Checkpoint none or only some of these modules if there is memory for their activations.
        info: 0.17 of 1 ms, 0 to 0.31
        simulated, if nothing were computed again
        * stepscope.module: net × 1, 0.17 ms, backward net
        """,
    ),
    "sorting": Case(
        "hotspot",
        repeated("main | 10 300 | aten::sort\nmain | 310 320 | aten::lstm\nmain | 20 30 | aten::sort"),
        """
        aten::sort takes 29% of the step.
        It runs 2 times per step.
        -> Sort fewer elements, or sort once for several steps; a mask or a running maximum may be
        enough.
        warning: 0.145 of 1 ms, 0 to 0.33
        simulated, if it took half as long
        scale:select=operator=aten::sort,factor=0.5
        * aten::sort × 2, 0.3 ms, forward
        """,
    ),
    "indexing": Case(
        "index_backward",
        repeated(
            f"main | 10 50 | aten::index | seq=5\nmain | 100 300 | {NODE} IndexBackward0 | seq=5 fwd=1\n"
            "main | 105 290 | IndexBackward0 | seq=5 fwd=1\nmain | 400 410 | aten::mm"
        ),
        """
        The backward pass of indexing (tensor[indices]) takes 0.185 ms per step.
        -> To index one dimension use torch.index_select or, for rows, F.embedding.
        critical: 0.28 of 1 ms, 0 to 0.28
        at most the time of the indexing and its gradient
        * IndexBackward0 × 1, 0.185 ms, backward
        """,
    ),
    "an exposed collective": Case(
        "exposed_communication",
        repeated("main | 10 100 | aten::linear\ngloo | 200 600 | gloo:all_reduce\nmain | 590 700 | aten::mm"),
        """
        Communication is exposed for 0.39 ms of the step (39%).
        Another 0.01 ms overlaps with computation.
        -> Overlap collectives with other work, send less data (16 bits), and check whether one
        rank is late.
        critical: 0.39 of 1 ms, 0 to 0.39
        at most the exposed time
        * gloo:all_reduce × 1, 0.4 ms, other
        """,
    ),
}
LIMITS = {
    "more workers than 2 cores": Limit(
        "too_many_workers", BY_WORKERS, repeated("main | 10 20 | aten::mm"), loader(workers=3)
    ),
    "moving for 10 % of the step": Limit(
        "copy_fusions", moving(("copy.1", 2000, "")), moving(("copy.1", 1999.9, "")), JAX
    ),
    "20 programs": Limit("small_programs", small_programs(20), small_programs(19), JAX),
    "programs of less than 200 us": Limit(
        "small_programs", small_programs(40, 199.9, 250), small_programs(40, 200, 250), JAX
    ),
    "programs that repeat": Limit(
        "small_programs",
        small_programs(20, more=program("once", 9000, 9010) * 2),
        of_jax(*(program(f"f{n}", 1000 + 200 * n, 1050 + 200 * n) for n in range(30))),
        JAX,
    ),
    "calls of 5 % of the step": Limit("forward_without_backward", calls(us=1590), calls(us=1610)),
    "passes of 5 % of the step": Limit(
        "repeated_backward", repeated(LOSSES.format(end=520), 2790), repeated(LOSSES.format(end=520), 2810)
    ),
    "exchanges of 5 % of the step": Limit("exchange_per_pass", exchanges(us=1200), exchanges(193, us=1200)),
    "16 calls": Limit("repeated_module", modules(16), modules(15), {"model": LAYER}),
    "products of less than 20 us": Limit(
        "repeated_module", modules(16, 19.9, length=2000), modules(16, 20, length=2000), {"model": LAYER}
    ),
    "calls of 20 % of the step": Limit(
        "repeated_module", modules(16, length=4200), modules(16, length=4350), {"model": LAYER}
    ),
    "32 reads": Limit("synchronizing_calls", reads(32, "aten::argmax"), reads(31, "aten::argmax")),
    "8 experts": Limit("expert_loop", experts(8), experts(7)),
    "8 numbers of rows": Limit("expert_loop", experts(8), experts(16, "equal")),
    "4 weights": Limit("expert_loop", experts(16, weights=4), experts(16, weights=3)),
    "one gathering for 4 products": Limit("expert_loop", experts(16, gathers=5), experts(16, gathers=4)),
    "20 elementwise operators": Limit("kernel_fusion", chains(10, count=1), chains(9, count=1)),
    "operators of less than 10 us": Limit("kernel_fusion", chains(4, 9, count=6), chains(2, 11, count=6)),
    "a batch of 8 rows": Limit("small_batch", small("8"), small("9")),
    "batches of 2 times 4 rows": Limit("small_batch", small("2,4"), small("2,5")),
    "operators of less than 20 us": Limit("small_batch", small("8", 19.999), small("8", 400)),
    "12 GFLOP/s": Limit("slow_fallback", slow("c10::BFloat16", 22_370), slow("c10::BFloat16", 22_369)),
    "a fallback of 5 % of the step": Limit(
        "slow_fallback",
        slow("float", 5000, name="aten::_slow_conv2d_forward", dims="null"),
        slow("float", 4999, name="aten::_slow_conv2d_forward", dims="null"),
    ),
    "1 MFLOP": Limit(
        "slow_fallback",
        slow("c10::BFloat16", dims="[[100,50],[50,100]]"),
        slow("c10::BFloat16", dims="[[99,50],[50,100]]"),
    ),
    "doubles of 5 % of the step": Limit("fp64_matmul", slow("double", 5000), slow("double", 4999)),
    "4 copies": Limit("layout_conversions", copies(4), copies(3)),
    "copies of dense tensors": Limit("layout_conversions", copies(4), copies(4, NCHW, "[0,1,96,3]")),
    "copies from dense tensors": Limit("layout_conversions", copies(4), copies(4, "[0,1024,32,1]", NHWC)),
    "copies of one size": Limit("layout_conversions", copies(4), copies(4, other="[8,3,32,31]")),
    "copies of sizes above 1": Limit(
        "layout_conversions", copies(4), copies(4, size="[8,3,32,1]", other="[8,3,32,1]")
    ),
    "attention of 5 % of the step": Limit("unfused_attention", attention(20), attention(19)),
    "free work of 10 % of the step": Limit(
        "work_without_gradient", repeated(FREE.format(end=110)), repeated(FREE.format(end=109.9))
    ),
    "one-hot rows of 5 % of the step": Limit(
        "one_hot_product",
        repeated(ONE_HOT.format(end=300, product="[[4,6,50],[8,50],[]]"), 10_150),
        repeated(ONE_HOT.format(end=300, product="[[4,6,50],[8,50],[]]"), 10_250),
    ),
    "waits of 5 % of the step": Limit("input_bound", waiting(50), waiting(49.9)),
    "sorting for 15 % of the step": Limit(
        "hotspot", repeated("main | 10 160 | aten::sort"), repeated("main | 10 159.9 | aten::sort")
    ),
    "checkpoints of 5 % of the step": Limit(
        "recomputation", repeated(RECOMPUTED.format(end=360)), repeated(RECOMPUTED.format(end=359.9))
    ),
    "donations of a tenth": Limit(
        "missing_donation",
        of_jax(program("f", 0, 4000)),
        of_jax(program("g", 0, 4000)),
        donating(4_400_000, 44_000_000),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_finding_in_full(name: str) -> None:
    rule, trace, says, metadata = CASES[name]
    assert told(alone(rule, trace, **metadata)) == textwrap.dedent(says).strip()


@pytest.mark.parametrize("name", LIMITS)
def test_a_rule_finds_from_its_limit_on(name: str) -> None:
    rule, found, silent, metadata = LIMITS[name]
    assert [len(alone(rule, trace, **metadata)) for trace in (found, silent)] == [1, 0]


ASKED = (
    *("transpose", "copy", "copy_p", "convert_element_type", "reshape", "rev", "concatenate", "slice"),
    *("dynamic_slice", "squeeze", "broadcast_in_dim", "optimization_barrier"),
)


@pytest.mark.parametrize("primitive", [*ASKED, "mul"])
def test_what_asks_for_another_order_of_dimensions(primitive: str) -> None:
    """Two operations of the primitive take longer together than one of a product."""
    operations = [scoped("copy.1", 1000, primitive), scoped("copy.2", 1000, primitive)]
    (finding,) = alone("copy_fusions", moving(*operations, scoped("copy.3", 1500, "dot_general")), **JAX)
    words = "Keep one order" if primitive in ASKED else "No line asks for most of them"
    assert finding.advice.startswith(words)
    assert primitive in ASKED or "order of dimensions of mul." in finding.advice


MOVES = (
    *("loop", "input", "wrapped", "fused", "fusion", "kernel", "computation", "bitcast", "reshape"),
    *("element", "type", "transpose", "copy", "convert"),
)


@pytest.mark.parametrize("word", MOVES)
def test_names_of_operations_that_only_move(word: str) -> None:
    assert only_moves(f"{word}_copy_fusion.3.kd")
    assert only_moves(word) == (word in ("transpose", "copy", "convert"))
    assert not only_moves(f"{word}_copy_add")


def test_moving_in_most_of_the_steps_is_not_moving_in_all() -> None:
    """In two of three steps for 12 %, so on average for 8 %."""
    steps = of_jax(program("f", 0, 4800, "copy.1")).splitlines()
    third = ["main | 40000 60000 | train#step_num=2 | cat=annotation"]
    third += ["main | 40000 41000 | PjitFunction(f) | cat=runtime"]
    assert not alone("copy_fusions", "\n".join([*steps, *third]), **JAX)
    assert len(alone("copy_fusions", "\n".join(steps), **JAX)) == 1


def evaluating(us: float, name: str = "evaluate", inner: str = "aten::mm", more: str = "") -> str:
    return repeated(
        f"main | 10 {10 + us} | train.py(9): {name} | cat=python\nmain | 12 {5 + us} | {inner}\n{more}"
    )


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (evaluating(200), 1),
        (evaluating(199.9), 0),
        (evaluating(500, "step"), 0),
        (evaluating(500, inner="aten::add"), 0),
        (evaluating(500, inner="aten::scaled_dot_product_attention"), 1),
        (evaluating(500, inner="stepscope.module: net"), 1),
        (
            evaluating(
                500,
                more=f"main | 20 30 | aten::mm | seq=3\nmain | 800 900 | {NODE} MmBackward0 | seq=3 fwd=1",
            ),
            0,
        ),
    ],
)
def test_an_evaluation_of_20_percent_of_the_step(text: str, number: int) -> None:
    assert len(alone("frequent_evaluation", text)) == number


def buckets(count: int, size: int, name: str = "gloo:all_reduce") -> str:
    """All-reduces of 20 us on a CPU in and after the backward pass, one of a module, and a range."""
    lines = ["main | 10 20 | aten::mm | seq=1", f"main | 100 105 | {NODE} MmBackward0 | seq=1 fwd=1"]
    lines += [f"gloo | {110 + 25 * n} {130 + 25 * n} | {name} | bytes={size + n % 2}" for n in range(count)]
    lines += [
        "main | 5 60 | stepscope.module: net",
        "main | 30 50 | gloo:all_reduce | cat=communication bytes=99",
    ]
    lines += [
        "main | 600 601 | all_reduce | cat=annotation bytes=99",
        "main | 950 960 | Optimizer.step#SGD.step",
    ]
    return repeated("\n".join(lines))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (buckets(16, 1000), 1),
        (buckets(15, 1000), 0),
        (buckets(17, (1 << 20) - 1), 1),
        (buckets(17, 1 << 20), 0),
        (buckets(20, 1000, "gloo:reduce_scatter"), 0),
    ],
)
def test_16_collectives_of_less_than_1_mib(text: str, number: int) -> None:
    assert len(alone("small_buckets", text)) == number


def sampled_functions(*places: StagePlace, text: str = TRAINING) -> list[Finding]:
    """What `slow_function` says where samples of the loop saw some functions."""
    context = RuleContext(annotate(drawn_trace(repeated(text, 10_000))))
    vars(context.measures)["summary"] = replace(context.measures.summary, places=list(places))
    return apply_rules(context, [BY_NAME["slow_function"]])


def place(
    share: float, function: str = "log", stage: str = "other", samples: int = 50, error: float = 0.0
) -> StagePlace:
    called = ("main (/me/train.py:64)",)
    return StagePlace(stage, function, "/me/train.py", 7, 10 * share, share, 0.0, samples, 10 * error, called)


def test_a_function_that_samples_saw() -> None:
    assert told(sampled_functions(place(0.2, error=0.05), place(0.3, "next_batch"))) == SAMPLED


SAMPLED = """
next_batch takes about 3 ms per step (30%).
It runs outside of forward, backward and the optimizer, in me/train.py:7, called in line
64.
-> Keep what it draws from in preallocated tensors, one for each field.
critical: 3 of 10 ms, 1.5 to 3
at most this time, by samples of the loop
* next_batch × 1, 3 ms, other /me/train.py:7 in next_batch
log takes about 2 ms per step (20%).
It runs outside of forward, backward and the optimizer, in me/train.py:7, called in line
64.
-> Replace loops over elements by operators on whole tensors, or do it every N steps.
critical: 2 of 10 ms, 0.75 to 2.5
at most this time, by samples of the loop
* log × 1, 2 ms, other /me/train.py:7 in log
""".strip()


@pytest.mark.parametrize(
    ("places", "text", "number"),
    [
        ([place(0.1)], TRAINING, 1),
        ([place(0.0999)], TRAINING, 0),
        ([place(0.2, error=0.1)], TRAINING, 1),
        ([place(0.2, error=0.1001)], TRAINING, 0),
        ([place(0.9, stage="forward")], TRAINING, 0),
        ([place(0.9, samples=0)], TRAINING, 0),
        ([place(0.9, "<module>")], TRAINING, 0),
        ([place(0.09), place(0.9, "<module>"), place(0.2, samples=0), place(0.2)], TRAINING, 1),
        ([place(0.9)], "main | 10 20 | aten::mm", 0),  # nothing trains
        ([place(0.2)], TRAINING + "main | 2000 3000 | dynamo_timed", 1),  # half of it compiles
        ([place(0.2)], TRAINING + "main | 2000 3001 | dynamo_timed", 0),
        ([place(0.2), place(0.3)], TRAINING + "main | 2000 3001 | dynamo_timed", 1),
    ],
)
def test_functions_of_10_percent_of_the_step(places: list[StagePlace], text: str, number: int) -> None:
    assert len(sampled_functions(*places, text=text)) == number


@pytest.mark.parametrize(("workers", "found"), [(2, 0), (3, 1)])
def test_as_many_workers_as_cores(workers: int, found: int) -> None:
    assert len(alone("too_many_workers", BY_WORKERS, **loader(workers=workers))) == found


@pytest.mark.parametrize(("could", "found"), [((1 << 20) - 1, 0), (1 << 20, 1), ((1 << 20) + 1, 1)])
def test_a_donation_of_1_mib(could: int, found: int) -> None:
    assert len(alone("missing_donation", of_jax(program("f", 0, 4000)), **donating(could, 2 << 20))) == found


@pytest.mark.parametrize(("could", "found"), [(4_399_999, 0), (4_400_000, 1)])
def test_a_donation_of_a_tenth_of_the_arguments(could: int, found: int) -> None:
    assert (
        len(alone("missing_donation", of_jax(program("f", 0, 4000)), **donating(could, 44_000_000))) == found
    )
