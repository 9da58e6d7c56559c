"""Findings in full on a CPU: what each says, advises and saves, where, and what does not count."""

from __future__ import annotations

from typing import Any

import numpy as np
from drawn_findings import Case, Limit, from_limit_on, in_full, repeated

from stepscope.facts.annotate import annotate
from stepscope.testing import drawn_trace
from stepscope.trace.memory_schema import MEMORY
from stepscope.trace.table import Table
from stepscope.trace.trace import Trace

NODE = "autograd::engine::evaluate_function:"

LIGHTNING, TRANSFORMERS, ACCELERATE, TIMM = (
    f"main | 1 999 | {file}(9): fit | cat=python\n"
    for file in (
        "lightning/pytorch/trainer.py",
        "transformers/trainer.py",
        "accelerate/accelerator.py",
        "timm/data/loader.py",
    )
)


def allocating(*rows: tuple[int, str, int, str]) -> Trace:
    """Two steps of four operators of 100 us; rows of `memory`: event, device, rank and bytes."""
    operators = "\n".join(f"main | {at} {at + 100} | aten::empty" for at in (100, 300, 500, 700))
    trace = annotate(drawn_trace(repeated(operators)))
    event, device, rank, size = zip(*rows, strict=True)
    columns: dict[str, Any] = {"event": event, "device": device, "rank": rank, "bytes": size}
    columns |= {"time_ns": np.zeros(len(rows)), "category": [""] * len(rows)}
    return trace.with_table(Table(MEMORY, columns))


BIG = 32 << 20

OPERATORS = (1, 2, 3, 4, 6, 7, 8, 9)  # events.id

BLOCKS = [(event, "cpu", 0, BIG) for event in OPERATORS]

OTHERS = [(1, "cuda:0", 0, BIG), (2, "cpu", 1, BIG), (-1, "cpu", 0, BIG), (3, "cpu", 0, BIG - 1)]


def checked(nodes: int, checked: int, view_us: int = 30) -> str:
    """A step of 10 ms with views and backward nodes, of which some check their gradients twice."""
    lines = ["main | 9900 9990 | Optimizer.step#SGD.step"]
    for n in range(nodes):
        at, back = 100 * n, 5000 + 100 * n
        lines += [
            f"main | {at + 10} {at + 10 + view_us} | aten::view | seq={n}",
            f"main | {at + 60} {at + 70} | aten::view",
            f"main | {at + 80} {at + 90} | aten::mm | seq={n}",
            f"main | {back} {back + 75} | {NODE} MmBackward0 | seq={n} fwd=1",
            f"main | {back + 80} {back + 83} | aten::isnan",  # in no node
        ]
        if n < checked:
            lines += [
                f"main | {back + 41} {back + 50} | aten::isnan",
                f"main | {back + 50} {back + 60} | aten::isnan",
                f"main | {back + 60} {back + 75} | aten::item",
            ]
        else:
            lines.append(f"main | {back + 41} {back + 50} | aten::isnan | cat=annotation")
    lines += [f"main | 9000 9050 | {NODE} torch::autograd::AccumulateGrad"]
    lines += ["main | 9200 9300 | aten::view | seq=5"]  # after backward
    return repeated("\n".join(lines), 10_000)


SAVING = """
    main | 10 400 | train.py(31): main
    main | 20 {end} | {name} | cat=python
    main | 30 40 | aten::detach
    main | 500 990 | aten::mm
"""


def saving(name: str, end: float = 220) -> str:
    return repeated(SAVING.format(name=name, end=end))


def python(first_us: float, longest_us: float, update: str = "aten::relu", times: int = 3) -> str:
    """Steps of 10 ms: an operator, Python, another one, and Python again."""
    begin = 100 + first_us + longest_us
    inside = f"main | 100 {100 + first_us} | aten::mm\nmain | {begin} {begin + 500} | {update}"
    return repeated(inside, 10_000, times)


def scattered(us: float) -> str:
    """100 operators of so many us in a step of 10 ms, so that no Python between them takes 0.2 ms."""
    return repeated("\n".join(f"main | {at} {at + us} | aten::mm" for at in range(0, 10_000, 100)), 10_000)


def gradient(
    name: str, node: str, forward_us: float, backward_us: float, length: float = 1000, more: str = ""
) -> str:
    return repeated(
        f"""
        main | 10 {10 + forward_us} | {name} | seq=1 {more}
        main | 300 {300 + backward_us} | {NODE} {node} | seq=1 fwd=1
        main | 300 {300 + backward_us} | {node} | seq=1 fwd=1
        """,
        length,
    )


def elements(count: int, us: float = 4000, name: str = "aten::select", node: str = "SelectBackward0") -> str:
    """Elements and a product of each, with 10 us of Python after both; then their backward pass."""
    lines, at = ["main | 1 2 | aten::relu | seq=900"], 10
    for n in range(count):
        lines += [f"main | {at} {at + 5} | {name} | seq={2 * n}"]
        lines += [f"main | {at + 15} {at + 20} | aten::dot | seq={2 * n + 1}"]
        at += 30
    for n in reversed(range(2 * count)):
        lines.append(f"main | {at} {at + 5} | {NODE} {node} | seq={n} fwd=1")
        at += 5
    return repeated("\n".join(lines), us)


def cells(name: str, count: int = 16, us: float = 1000) -> str:
    """Recurrent cells of 10 us, each with a backward pass of 20 us; the second is longer."""
    lines = []
    for n in range(count):
        at, back = 10 + 15 * n, 500 + 20 * n
        lines += [f"main | {at} {at + 10 + 2 * (n == 1)} | {name} | seq={n}"]
        lines += [f"main | {back} {back + 20} | {NODE} AddmmBackward0 | seq={n} fwd=1"]
    return repeated("\n".join(lines), us)


STATISTICS = f"""
    main | 10 200 | aten::mm | seq=7
    main | 300 400 | {NODE} MmBackward0 | seq=7 fwd=1
    main | 450 500 | Optimizer.step#SGD.step
    main | 510 {{a}} | aten::histc
    main | 515 516 | aten::zeros
    main | {{a}} {{b}} | aten::to
    main | {{b}} {{c}} | aten::norm
    main | 990 991 | aten::add
    main | 992 993 | aten::sub
    main | 994 994.5 | aten::eq
"""


def statistics(a: float, b: float, c: float) -> str:
    return repeated(STATISTICS.format(a=a, b=b, c=c))


CASES = {
    "blocks of the system": Case(
        "allocator_churn",
        allocating(*BLOCKS, *OTHERS),
        """
        Each step allocates and frees 4 blocks of 32 MiB or more.
        They are 0.134 GB in total from the system: the kernel maps and clears every page each
        time.
        -> Work in place (add_, mul_, out=), reuse buffers, or preload an allocator that caches
        memory (jemalloc, tcmalloc).
        critical: 0.4 of 1 ms, 0 to 0.4
        at most the time of the operators that allocate
        * aten::empty × 4, 0.4 ms, forward
        """,
    ),
    "checks for NaN": Case(
        "anomaly_detection",
        checked(10, 10),
        """
        Anomaly detection checks 20 gradients per step for NaN, 0.34 ms.
        -> Leave out torch.autograd.set_detect_anomaly(True) and torch.autograd.detect_anomaly()
        unless you search for a NaN.
        warning: 0.54 of 10 ms, 0 to 0.54
        at most the checks, and a stack for each operation as long as a view takes
        * aten::isnan × 20, 0.19 ms, backward
        * aten::item × 10, 0.15 ms, backward
        """,
    ),
    "checks for NaN in Lightning": Case(
        "anomaly_detection",
        checked(10, 10) + "\n" + LIGHTNING,
        """
        Anomaly detection checks 20 gradients per step for NaN, 0.34 ms.
        -> Create the Trainer with detect_anomaly=False.
        warning: 0.54 of 10 ms, 0 to 0.54
        at most the checks, and a stack for each operation as long as a view takes
        * aten::isnan × 10, 0.095 ms, backward
        * aten::isnan × 10, 0.095 ms, backward lightning/pytorch/trainer.py:9 in fit
        * aten::item × 5, 0.075 ms, backward
        * aten::item × 5, 0.075 ms, backward lightning/pytorch/trainer.py:9 in fit
        """,
    ),
    "checks for NaN beside a device": Case(
        "anomaly_detection",
        checked(10, 10) + "\nmain | 9700 9701 | cudaLaunchKernel | corr=1\nstream 7 | 9710 9900 | a | corr=1",
        """
        Anomaly detection checks 20 gradients per step for NaN, 0.34 ms.
        -> Leave out torch.autograd.set_detect_anomaly(True) and torch.autograd.detect_anomaly()
        unless you search for a NaN.
        info: 0.34 of 10 ms, 0 to 0.34
        simulated, without the checks; stacks cost CPU time besides
        * aten::isnan × 20, 0.19 ms, backward
        * aten::item × 10, 0.15 ms, backward
        """,
    ),
    "a checkpoint": Case(
        "checkpoint_in_loop",
        saving("trainer.py(7): _save_checkpoint"),
        """
        Saving a checkpoint takes 0.2 ms per step, while training waits.
        See trainer.py:7 in _save_checkpoint.
        -> Save less often, and in the background.
        critical: 0.2 of 1 ms, 0 to 0.2
        at most this time
        * trainer.py(7): _save_checkpoint × 1, 0.2 ms, trainer.py:7 in _save_checkpoint
        """,
    ),
    "a checkpoint of PyTorch": Case(
        "checkpoint_in_loop",
        saving("torch/serialization.py(900): save"),
        """
        Saving a checkpoint takes 0.2 ms per step, while training waits.
        See train.py:31 in main.
        -> Save less often, and in the background.
        critical: 0.2 of 1 ms, 0 to 0.2
        at most this time
        * torch/serialization.py(900): save × 1, 0.2 ms, train.py:31 in main
        """,
        metadata={"framework": "jax"},
    ),
    "a checkpoint of transformers": Case(
        "checkpoint_in_loop",
        saving("transformers/trainer.py(7): save_model"),
        """
        Saving a checkpoint takes 0.2 ms per step, while training waits.
        See transformers/trainer.py:7 in save_model.
        -> Raise save_steps in TrainingArguments, or set save_only_model=True.
        critical: 0.2 of 1 ms, 0 to 0.2
        at most this time
        * transformers/trainer.py(7): save_model × 1, 0.2 ms, transformers/trainer.py:7 in
        save_model
        """,
    ),
    "a checkpoint of Lightning": Case(
        "checkpoint_in_loop",
        saving("lightning/pytorch/trainer.py(7): save_checkpoint"),
        """
        Saving a checkpoint takes 0.2 ms per step, while training waits.
        See pytorch/trainer.py:7 in save_checkpoint.
        -> Raise every_n_train_steps of ModelCheckpoint, or use AsyncCheckpointIO.
        critical: 0.2 of 1 ms, 0 to 0.2
        at most this time
        * lightning/pytorch/trainer.py(7): save_checkpoint × 1, 0.2 ms,
        lightning/pytorch/trainer.py:7 in save_checkpoint
        """,
    ),
    "a checkpoint of accelerate": Case(
        "checkpoint_in_loop",
        saving("accelerate/accelerator.py(7): save_state"),
        """
        Saving a checkpoint takes 0.2 ms per step, while training waits.
        See accelerate/accelerator.py:7 in save_state.
        -> Call accelerator.save_state less often.
        critical: 0.2 of 1 ms, 0 to 0.2
        at most this time
        * accelerate/accelerator.py(7): save_state × 1, 0.2 ms, accelerate/accelerator.py:7 in
        save_state
        """,
    ),
    "no checkpoint": Case("checkpoint_in_loop", saving("net.py(7): on_save_state_of_cache")),
    "Python": Case(
        "cpu_latency",
        python(2000, 6900),
        """
        The loop runs only Python for 75% of the step.
        Longest: 6.9 ms without interruption between aten::mm and aten::relu.
        -> Replace loops over elements by operators on whole tensors.
        critical: 7.5 of 10 ms, 3.75 to 7.5
        at most the time between operators
        * ProfilerStep#0 × 1, 10 ms,
        """,
    ),
    "Python of JAX": Case(
        "cpu_latency",
        python(2000, 6900),
        """
        The loop runs only Python for 75% of the step.
        Longest: 6.9 ms without interruption between aten::mm and aten::relu.
        -> Put loops over elements under jax.jit (jax.vmap, jax.lax.scan).
        critical: 7.5 of 10 ms, 3.75 to 7.5
        at most the time between operators
        * ProfilerStep#0 × 1, 10 ms,
        """,
        metadata={"framework": "jax"},
    ),
    "Python of training": Case(
        "cpu_latency",
        python(4000, 4900, "Optimizer.step#SGD.step"),
        """
        The training loop runs only Python for 49% of the step.
        Longest: 4.9 ms without interruption between aten::mm and SGD.step.
        -> Replace loops over elements by operators on whole tensors.
        critical: 4.9 of 10 ms, 0 to 4.9
        at most the time between operators
        * ProfilerStep#0 × 1, 10 ms,
        """,
    ),
    "a search for unused parameters": Case(
        "ddp_unused_parameters",
        repeated(
            """
            main | 10 900 | aten::mm
            main | 900 950 | torch::distributed::reducer::search_unused_parameters
            main | 905 945 | search_unused_parameters
            """
        ),
        """
        DistributedDataParallel searches for unused parameters in every step, 0.05 ms.
        -> If every parameter gets a gradient, create DistributedDataParallel with
        find_unused_parameters=False; if the same ones never do, add static_graph=True.
        warning: 0.05 of 1 ms, 0 to 0.05
        simulated, if there were no search
        * torch::distributed::reducer::search_unused_parameters × 1, 0.05 ms, forward
        """,
    ),
    "buffers of BatchNorm": Case(
        "broadcast_buffers",
        repeated(
            """
            main | 10 900 | DistributedDataParallel.forward
            main | 20 60 | aten::flatten_dense_tensors
            main | 60 70 | c10d::broadcast_
            gloo | 62 70 | gloo:broadcast
            main | 70 160 | aten::unflatten_dense_tensors
            main | 200 880 | aten::mm
            main | 910 950 | aten::flatten_dense_tensors
            """
        ),
        """
        DistributedDataParallel broadcasts buffers in every step, 0.14 ms.
        -> Create DistributedDataParallel with broadcast_buffers=False: each rank keeps the
        running statistics of its own batches.
        warning: 0.14 of 1 ms, 0 to 0.14
        simulated, if no buffers were sent
        * aten::unflatten_dense_tensors × 1, 0.09 ms, forward
        * aten::flatten_dense_tensors × 1, 0.04 ms, forward
        * c10d::broadcast_ × 1, 0.01 ms, forward
        * gloo:broadcast × 1, 0.008 ms, forward
        """,
    ),
    "elements": Case(
        "element_loop",
        elements(32),
        """
        Python takes 32 parts of tensors one by one per step.
        -> Where iterations do not depend on each other, compute on whole tensors: a product,
        broadcasting, torch.func.vmap.
        warning: 1.28 of 4 ms, 0.64 to 1.28
        at most all calls of the loop and of its backward pass
        * aten::select × 32, 0.16 ms, forward
        """,
    ),
    "a slow gradient": Case(
        "forward_backward",
        gradient("aten::cumsum", "CumsumBackward0", 20, 200),
        """
        Backward of aten::cumsum takes 10 times its forward, 0.2 ms per step.
        -> A factor of two is usual.
        warning: 0.16 of 1 ms, 0 to 0.16
        simulated, if it took 2 times the forward pass
        scale:select=operator=autograd::engine::evaluate_function: CumsumBackward0,factor=0.200
        * autograd::engine::evaluate_function: CumsumBackward0 × 1, 0.2 ms, backward
        """,
    ),
    "a gradient of a view": Case(
        "forward_backward",
        gradient("aten::slice", "SliceBackward0", 2, 200),
        """
        The gradient of aten::slice takes 0.2 ms per step.
        -> Each view gets a gradient as large as the whole tensor.
        warning: 0.2 of 1 ms, 0 to 0.2
        simulated, if it took no time
        scale:select=operator=autograd::engine::evaluate_function: SliceBackward0,factor=0.000
        * autograd::engine::evaluate_function: SliceBackward0 × 1, 0.2 ms, backward
        """,
    ),
    "a gradient of the user's": Case(
        "forward_backward",
        gradient("_Scan", "_ScanBackward", 20, 100),
        """
        Backward of _Scan takes 5 times its forward, 0.1 ms per step.
        -> A factor of two is usual.
        warning: 0.06 of 1 ms, 0 to 0.06
        simulated, if it took 2 times the forward pass
        scale:select=operator=autograd::engine::evaluate_function: _ScanBackward,factor=0.400
        * autograd::engine::evaluate_function: _ScanBackward × 1, 0.1 ms, backward
        """,
    ),
    "cells": Case(
        "recurrent_loop",
        cells("aten::lstm_cell"),
        """
        A recurrent cell runs 16 times per step, once per sequence element.
        It takes 0.585 ms with its backward pass.
        -> If all elements of the sequence are known before, give the whole sequence to nn.LSTM
        instead.
        warning: 0.585 of 1 ms, 0 to 0.585
        at most the time of these calls and of their backward pass
        * autograd::engine::evaluate_function: AddmmBackward0 × 16, 0.32 ms, backward
        * aten::lstm_cell × 16, 0.162 ms, forward
        """,
    ),
    "statistics": Case(
        "work_between_stages",
        statistics(700, 800, 900),
        """
        Operators outside forward, backward and optimizer take 0.393 ms per step (39%).
        Longest: aten::histc once, aten::to once, aten::norm once.
        -> Compute statistics, metrics or averages of weights every N steps, of fewer tensors, or
        in one call (torch._foreach_…).
        critical: 0.42225 of 1 ms, 0.211125 to 0.42225
        at most their time, with the Python between
        * aten::histc × 1, 0.19 ms, other
        * aten::to × 1, 0.1 ms, other
        * aten::norm × 1, 0.1 ms, other
        * aten::add × 1, 0.001 ms, other
        * aten::sub × 1, 0.001 ms, other
        * aten::eq × 1, 0.0005 ms, other
        """,
    ),
    "statistics of JAX": Case(
        "work_between_stages",
        statistics(700, 800, 900),
        """
        Operators outside forward, backward and optimizer take 0.393 ms per step (39%).
        Longest: aten::histc once, aten::to once, aten::norm once.
        -> Compute statistics, metrics or averages of weights every N steps, of fewer tensors, or
        in one call (jax.jit).
        critical: 0.42225 of 1 ms, 0.211125 to 0.42225
        at most their time, with the Python between
        * aten::histc × 1, 0.19 ms, other
        * aten::to × 1, 0.1 ms, other
        * aten::norm × 1, 0.1 ms, other
        * aten::add × 1, 0.001 ms, other
        * aten::sub × 1, 0.001 ms, other
        * aten::eq × 1, 0.0005 ms, other
        """,
        metadata={"framework": "jax"},
    ),
}

LIMITS = {
    "4 blocks": Limit("allocator_churn", allocating(*BLOCKS), allocating(*BLOCKS[:-1])),
    "30 % of the nodes": Limit("anomaly_detection", checked(9, 3), checked(10, 3)),
    "3 nodes": Limit("anomaly_detection", checked(3, 3), checked(2, 2)),
    "a checkpoint of 5 %": Limit(
        "checkpoint_in_loop",
        saving("trainer.py(7): save_model", 70),
        saving("trainer.py(7): save_model", 69.999),
    ),
    "Python for 60 % of the step": Limit("cpu_latency", scattered(40), scattered(40.001)),
    "the same Python for 10 % of the step": Limit(
        "cpu_latency", python(8000, 1000, times=2), python(8001, 999, times=2)
    ),
    "32 elements": Limit("element_loop", elements(32), elements(31)),
    "elements in 20 % of the step": Limit("element_loop", elements(32, 6000), elements(32, 6900)),
    "8 times its forward": Limit(
        "forward_backward",
        gradient("aten::cumsum", "CumsumBackward0", 20, 160.1),
        gradient("aten::cumsum", "CumsumBackward0", 20, 160),
    ),
    "4 times what the user wrote": Limit(
        "forward_backward",
        gradient("_Scan", "_ScanBackward", 20, 80.1),
        gradient("_Scan", "_ScanBackward", 20, 80),
    ),
    "5 % of the step": Limit(
        "forward_backward",
        gradient("aten::cumsum", "CumsumBackward0", 5, 50),
        gradient("aten::cumsum", "CumsumBackward0", 5, 49.999),
    ),
    "a forward pass of 5 us": Limit(
        "forward_backward",
        gradient("aten::cumsum", "CumsumBackward0", 5, 100),
        gradient("aten::cumsum", "CumsumBackward0", 4.999, 100),
    ),
    "16 cells": Limit("recurrent_loop", cells("aten::gru_cell"), cells("aten::gru_cell", 15)),
    "cells in 5 % of the step": Limit(
        "recurrent_loop", cells("aten::gru_cell", us=11_000), cells("aten::gru_cell", us=12_000)
    ),
    "10 % of the step": Limit(
        "work_between_stages", statistics(607.5, 700, 700), statistics(607.4, 700, 700)
    ),
}


test_a_finding_in_full = in_full(CASES)
test_a_rule_finds_from_its_limit_on = from_limit_on(LIMITS)
