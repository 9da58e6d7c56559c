"""A small graph after each kind of change, in full: tasks, gaps and dependencies."""

from __future__ import annotations

import textwrap
from collections.abc import Callable

import numpy as np
import pytest
from drawn import whole

from stepscope.facts.annotate import annotate
from stepscope.graph import (
    Graph,
    add_links,
    add_thread,
    append,
    breakdown,
    build_graph,
    critical_ms,
    critical_path,
    inherited,
    insert,
    insert_device_work,
    redirect,
    remove,
    removed_by,
    scale,
    select,
    simulate,
    typical_launch,
    without_unexplained_delays,
)
from stepscope.testing import drawn_trace

RICH = """
    main     |   0 600 | ProfilerStep#3
    main     |  10  30 | aten::mm
    main     |  12  16 | cudaLaunchKernel | corr=1
    main     |  40  60 | aten::relu
    main     |  42  46 | cudaLaunchKernel | corr=2
    main     |  50  54 | cudaLaunchKernel | corr=3
    main     |  60  62 | cudaStreamWaitEvent
    main     |  64  70 | cudaLaunchKernel | corr=4
    main     | 150 170 | aten::add
    main     | 300 310 | aten::sub
    main     | 400 560 | cudaDeviceSynchronize
    stream 7 |  22 112 | sgemm | corr=1 bytes=8
    stream 7 | 112 130 | relu  | corr=2
    stream 7 | 140 180 | relu  | corr=3
    stream 8 | 185 550 | copy  | corr=4
"""


def task(graph: Graph, name: str, number: int = 0) -> int:
    return int(np.flatnonzero(graph.tasks.text("name").mask(name))[number])


def appended(graph: Graph) -> Graph:
    graph, thread = add_thread(graph, "network", "communication", 0, ordered=False)
    graph, new = append(
        graph, [thread, 1, thread], ["a", "b", "c"], duration_ns=[1000, 2000, 3000], kind="gemm"
    )
    return add_links(graph, [task(graph, "sgemm")] * 2, new[[0, 2]], "communication", [500, 700])


def redirected(graph: Graph) -> Graph:
    graph, new = insert(graph, [task(graph, "relu", 1)], ["pack"], duration_ns=1000)
    return redirect(graph, [task(graph, "relu", 1)], new)


EDITS: dict[str, tuple[Callable[[Graph], Graph], str]] = {
    "as recorded": (
        lambda graph: graph,
        """
        steps 600
        CPU, device, both, neither: 87, 150, 363, 0
        path forward 550, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 aten::sub 10+90 of 3 cpu_op other event 13
        - 400 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 550 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 600 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 112 relu 18+10 of 3 kernel elementwise forward event 9
        - 140 relu 40+0 of 3 kernel elementwise forward event 10
        device stream 8 rank 0
        - 185 copy 365+0 of 3 kernel elementwise forward event 12
        cudaLaunchKernel (2) > sgemm (16) launch 10
        cudaLaunchKernel (5) > relu (17) launch 10
        cudaLaunchKernel (7) > relu (18) launch 10
        cudaLaunchKernel (10) > copy (19) launch 10
        relu (18) > cudaDeviceSynchronize (14) synchronization 0
        copy (19) > cudaDeviceSynchronize (14) synchronization 0
        relu (18) > copy (19) synchronization 5
        """,
    ),
    "without a kernel": (
        lambda graph: remove(graph, select(graph, name="sgemm")),
        """
        steps 536
        CPU, device, both, neither: 113, 90, 333, 0
        path forward 486, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 aten::mm 14+10 of 3 cpu_op forward event 1
        - 36 aten::relu 2+0 of 3 cpu_op forward event 4
        - 38 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 42 aten::relu 4+0 of 3 cpu_op forward event 4
        - 46 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 50 aten::relu 6+0 of 3 cpu_op forward event 4
        - 56 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 60 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 146 aten::add 20+130 of 3 cpu_op other event 11
        - 296 aten::sub 10+90 of 3 cpu_op other event 13
        - 396 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 486 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 536 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 48 relu 18+10 of 3 kernel elementwise forward event 9
        - 76 relu 40+0 of 3 kernel elementwise forward event 10
        device stream 8 rank 0
        - 121 copy 365+0 of 3 kernel elementwise forward event 12
        cudaLaunchKernel (4) > relu (15) launch 10
        cudaLaunchKernel (6) > relu (16) launch 10
        cudaLaunchKernel (9) > copy (17) launch 10
        relu (16) > cudaDeviceSynchronize (13) synchronization 0
        copy (17) > cudaDeviceSynchronize (13) synchronization 0
        relu (16) > copy (17) synchronization 5
        """,
    ),
    "without a kernel, but with its launch": (
        lambda graph: remove(graph, select(graph, name="relu"), calls=False),
        """
        steps 532
        CPU, device, both, neither: 77, 82, 373, 0
        path forward 482, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 aten::sub 10+90 of 3 cpu_op other event 13
        - 400 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 482 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 532 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        device stream 8 rank 0
        - 117 copy 365+0 of 3 kernel elementwise forward event 12
        cudaLaunchKernel (2) > sgemm (16) launch 10
        cudaLaunchKernel (10) > copy (17) launch 10
        sgemm (16) > cudaDeviceSynchronize (14) synchronization 0
        copy (17) > cudaDeviceSynchronize (14) synchronization 0
        sgemm (16) > copy (17) synchronization 5
        """,
    ),
    "without the last work": (
        lambda graph: remove(graph, select(graph, name="copy")),
        """
        steps 394
        CPU, device, both, neither: 246, 0, 148, 0
        path other 300, forward 94, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+32 of 3 runtime forward event 7
        - 94 aten::add 20+130 of 3 cpu_op other event 11
        - 244 aten::sub 10+90 of 3 cpu_op other event 13
        - 344 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 344 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 394 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 112 relu 18+10 of 3 kernel elementwise forward event 9
        - 140 relu 40+0 of 3 kernel elementwise forward event 10
        device stream 8 rank 0
        cudaLaunchKernel (2) > sgemm (15) launch 10
        cudaLaunchKernel (5) > relu (16) launch 10
        cudaLaunchKernel (7) > relu (17) launch 10
        relu (17) > cudaDeviceSynchronize (13) synchronization 0
        """,
    ),
    "without a wait": (
        lambda graph: remove(graph, select(graph, name="cudaDeviceSynchronize")),
        """
        steps 550
        CPU, device, both, neither: 37, 150, 363, 0
        path forward 550
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 aten::sub 10+90 of 3 cpu_op other event 13
        - 400 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 112 relu 18+10 of 3 kernel elementwise forward event 9
        - 140 relu 40+0 of 3 kernel elementwise forward event 10
        device stream 8 rank 0
        - 185 copy 365+0 of 3 kernel elementwise forward event 12
        cudaLaunchKernel (2) > sgemm (14) launch 10
        cudaLaunchKernel (5) > relu (15) launch 10
        cudaLaunchKernel (7) > relu (16) launch 10
        cudaLaunchKernel (10) > copy (17) launch 10
        relu (16) > copy (17) synchronization 5
        """,
    ),
    "without operators": (
        lambda graph: remove(graph, select(graph, operator="aten::*", on_device=False)),
        """
        steps 588
        CPU, device, both, neither: 70, 393, 120, 5
        path forward 538, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 14 cudaLaunchKernel 6+120 of 3 runtime forward event 8
        - 140 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 538 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 588 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 10 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 100 relu 18+10 of 3 kernel elementwise forward event 9
        - 128 relu 40+0 of 3 kernel elementwise forward event 10
        device stream 8 rank 0
        - 173 copy 365+0 of 3 kernel elementwise forward event 12
        step 3 (0) > sgemm (6) launch 10
        step 3 (0) > relu (7) launch 10
        step 3 (0) > relu (8) launch 10
        cudaLaunchKernel (2) > copy (9) launch 10
        relu (8) > cudaDeviceSynchronize (4) synchronization 0
        copy (9) > cudaDeviceSynchronize (4) synchronization 0
        relu (8) > copy (9) synchronization 5
        """,
    ),
    "without anything": (
        lambda graph: remove(graph, np.ones(len(graph), np.bool_)),
        """
        steps 10
        CPU, device, both, neither: 10, 0, 0, 0
        path forward 10, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        device stream 8 rank 0
        """,
    ),
    "with tasks after others": (
        lambda graph: insert(
            graph,
            [task(graph, "relu"), task(graph, "sgemm"), task(graph, "relu")],
            ["b", "a", "c"],
            duration_ns=[1000, 2000, 3000],
            kind="gemm",
        )[0],
        """
        steps 606
        CPU, device, both, neither: 87, 156, 363, 0
        path forward 556, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 aten::sub 10+90 of 3 cpu_op other event 13
        - 400 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 556 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 606 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 112 a 2+0 of 3 kernel gemm forward
        - 114 relu 18+10 of 3 kernel elementwise forward event 9
        - 142 b 1+0 of 3 kernel gemm forward
        - 143 c 3+0 of 3 kernel gemm forward
        - 146 relu 40+0 of 3 kernel elementwise forward event 10
        device stream 8 rank 0
        - 191 copy 365+0 of 3 kernel elementwise forward event 12
        cudaLaunchKernel (2) > sgemm (16) launch 10
        cudaLaunchKernel (5) > relu (18) launch 10
        cudaLaunchKernel (7) > relu (21) launch 10
        cudaLaunchKernel (10) > copy (22) launch 10
        relu (21) > cudaDeviceSynchronize (14) synchronization 0
        copy (22) > cudaDeviceSynchronize (14) synchronization 0
        relu (21) > copy (22) synchronization 5
        """,
    ),
    "with tasks before others": (
        lambda graph: insert(
            graph, [task(graph, "copy"), task(graph, "copy")], ["a", "b"], True, duration_ns=1000, step=7
        )[0],
        """
        steps 602
        CPU, device, both, neither: 87, 152, 363, 0
        path forward 552, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 aten::sub 10+90 of 3 cpu_op other event 13
        - 400 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 552 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 602 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 112 relu 18+10 of 3 kernel elementwise forward event 9
        - 140 relu 40+0 of 3 kernel elementwise forward event 10
        device stream 8 rank 0
        - 185 a 1+0 of 7 kernel elementwise forward
        - 186 b 1+0 of 7 kernel elementwise forward
        - 187 copy 365+0 of 3 kernel elementwise forward event 12
        cudaLaunchKernel (2) > sgemm (16) launch 10
        cudaLaunchKernel (5) > relu (17) launch 10
        cudaLaunchKernel (7) > relu (18) launch 10
        cudaLaunchKernel (10) > copy (21) launch 10
        relu (18) > cudaDeviceSynchronize (14) synchronization 0
        copy (21) > cudaDeviceSynchronize (14) synchronization 0
        relu (18) > a (19) synchronization 5
        """,
    ),
    "with kernels and their launches": (
        lambda graph: insert_device_work(
            graph,
            [task(graph, "aten::add"), task(graph, "aten::sub")],
            [task(graph, "relu", 1), task(graph, "copy")],
            ["a", "b"],
            [1000, 2000],
            kind="gemm",
        )[0],
        """
        steps 602
        CPU, device, both, neither: 87, 144, 371, 0
        path forward 552, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 launch 4+0 of 3 cpu_op gemm other
        - 304 aten::sub 10+90 of 3 cpu_op other event 13
        - 404 launch 4+0 of 3 cpu_op gemm other
        - 408 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 552 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 602 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 112 relu 18+10 of 3 kernel elementwise forward event 9
        - 140 relu 40+0 of 3 kernel elementwise forward event 10
        - 310 a 1+0 of 3 kernel gemm forward
        device stream 8 rank 0
        - 185 copy 365+0 of 3 kernel elementwise forward event 12
        - 550 b 2+0 of 3 kernel gemm forward
        cudaLaunchKernel (2) > sgemm (18) launch 10
        cudaLaunchKernel (5) > relu (19) launch 10
        cudaLaunchKernel (7) > relu (20) launch 10
        cudaLaunchKernel (10) > copy (22) launch 10
        a (21) > cudaDeviceSynchronize (16) synchronization 0
        b (23) > cudaDeviceSynchronize (16) synchronization 0
        relu (20) > copy (22) synchronization 5
        launch (12) > a (21) launch 10
        launch (14) > b (23) launch 10
        """,
    ),
    "with a channel": (
        appended,
        """
        steps 600
        CPU, device, both, neither: 85, 150, 365, 0
        path forward 550, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 aten::sub 10+90 of 3 cpu_op other event 13
        - 400 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 550 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 600 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 112 relu 18+10 of 3 kernel elementwise forward event 9
        - 140 relu 40+0 of 3 kernel elementwise forward event 10
        - 180 b 2+0 of None other gemm
        device stream 8 rank 0
        - 185 copy 365+0 of 3 kernel elementwise forward event 12
        communication network rank 0
        - 112.5 a 1+0 of None other gemm
        - 113.5 c 3+0 of None other gemm
        cudaLaunchKernel (2) > sgemm (16) launch 10
        cudaLaunchKernel (5) > relu (17) launch 10
        cudaLaunchKernel (7) > relu (18) launch 10
        cudaLaunchKernel (10) > copy (20) launch 10
        relu (18) > cudaDeviceSynchronize (14) synchronization 0
        copy (20) > cudaDeviceSynchronize (14) synchronization 0
        relu (18) > copy (20) synchronization 5
        sgemm (16) > a (21) communication 0.5
        sgemm (16) > c (22) communication 0.7
        """,
    ),
    "with waits for another task": (
        redirected,
        """
        steps 601
        CPU, device, both, neither: 87, 151, 363, 0
        path forward 551, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 aten::sub 10+90 of 3 cpu_op other event 13
        - 400 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 551 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 601 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 112 relu 18+10 of 3 kernel elementwise forward event 9
        - 140 relu 40+0 of 3 kernel elementwise forward event 10
        - 180 pack 1+0 of 3 kernel elementwise forward
        device stream 8 rank 0
        - 186 copy 365+0 of 3 kernel elementwise forward event 12
        cudaLaunchKernel (2) > sgemm (16) launch 10
        cudaLaunchKernel (5) > relu (17) launch 10
        cudaLaunchKernel (7) > relu (18) launch 10
        cudaLaunchKernel (10) > copy (20) launch 10
        pack (19) > cudaDeviceSynchronize (14) synchronization 0
        copy (20) > cudaDeviceSynchronize (14) synchronization 0
        pack (19) > copy (20) synchronization 5
        """,
    ),
    "half of the kernels, and their gaps": (
        lambda graph: scale(graph, graph.on_device, 0.5, gaps=True),
        """
        steps 450
        CPU, device, both, neither: 193.5, 0, 256.5, 0
        path other 300, forward 150, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 aten::sub 10+90 of 3 cpu_op other event 13
        - 400 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 400 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 450 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 45+0 of 3 kernel gemm forward 8 event 3
        - 67 relu 9+5 of 3 kernel elementwise forward event 9
        - 81 relu 20+0 of 3 kernel elementwise forward event 10
        device stream 8 rank 0
        - 106 copy 182.5+0 of 3 kernel elementwise forward event 12
        cudaLaunchKernel (2) > sgemm (16) launch 10
        cudaLaunchKernel (5) > relu (17) launch 10
        cudaLaunchKernel (7) > relu (18) launch 10
        cudaLaunchKernel (10) > copy (19) launch 10
        relu (18) > cudaDeviceSynchronize (14) synchronization 0
        copy (19) > cudaDeviceSynchronize (14) synchronization 0
        relu (18) > copy (19) synchronization 5
        """,
    ),
    "each kernel by itself": (
        lambda graph: scale(graph, select(graph, name="relu"), [0.5, 0.25]),
        """
        steps 561
        CPU, device, both, neither: 87, 111, 363, 0
        path forward 511, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 aten::sub 10+90 of 3 cpu_op other event 13
        - 400 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 511 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 561 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 112 relu 9+10 of 3 kernel elementwise forward event 9
        - 131 relu 10+0 of 3 kernel elementwise forward event 10
        device stream 8 rank 0
        - 146 copy 365+0 of 3 kernel elementwise forward event 12
        cudaLaunchKernel (2) > sgemm (16) launch 10
        cudaLaunchKernel (5) > relu (17) launch 10
        cudaLaunchKernel (7) > relu (18) launch 10
        cudaLaunchKernel (10) > copy (19) launch 10
        relu (18) > cudaDeviceSynchronize (14) synchronization 0
        copy (19) > cudaDeviceSynchronize (14) synchronization 0
        relu (18) > copy (19) synchronization 5
        """,
    ),
    "without delays that nothing explains": (
        without_unexplained_delays,
        """
        steps 595
        CPU, device, both, neither: 82, 145, 368, 0
        path forward 545, other 50, none 0
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 aten::relu 2+0 of 3 cpu_op forward event 4
        - 42 cudaLaunchKernel 4+0 of 3 runtime forward event 5
        - 46 aten::relu 4+0 of 3 cpu_op forward event 4
        - 50 cudaLaunchKernel 4+0 of 3 runtime forward event 6
        - 54 aten::relu 6+0 of 3 cpu_op forward event 4
        - 60 cudaStreamWaitEvent 2+2 of 3 runtime forward event 7
        - 64 cudaLaunchKernel 6+80 of 3 runtime forward event 8
        - 150 aten::add 20+130 of 3 cpu_op other event 11
        - 300 aten::sub 10+90 of 3 cpu_op other event 13
        - 400 cudaDeviceSynchronize 0+0 of 3 runtime other event 14
        - 545 cudaDeviceSynchronize 10+40 of 3 runtime other event 14
        - 595 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 22 sgemm 90+0 of 3 kernel gemm forward 8 event 3
        - 112 relu 18+5 of 3 kernel elementwise forward event 9
        - 135 relu 40+0 of 3 kernel elementwise forward event 10
        device stream 8 rank 0
        - 180 copy 365+0 of 3 kernel elementwise forward event 12
        cudaLaunchKernel (2) > sgemm (16) launch 10
        cudaLaunchKernel (5) > relu (17) launch 10
        cudaLaunchKernel (7) > relu (18) launch 10
        cudaLaunchKernel (10) > copy (19) launch 10
        relu (18) > cudaDeviceSynchronize (14) synchronization 0
        copy (19) > cudaDeviceSynchronize (14) synchronization 0
        relu (18) > copy (19) synchronization 5
        """,
    ),
}


@pytest.mark.parametrize("name", EDITS)
def test_a_whole_graph_after_a_change(name: str) -> None:
    change, expected = EDITS[name]
    graph = change(build_graph(annotate(drawn_trace(RICH)))).check()
    assert whole(graph) == textwrap.dedent(expected).strip("\n")


def test_what_a_graph_says_of_itself() -> None:
    graph = build_graph(annotate(drawn_trace(RICH))).check()
    assert typical_launch(graph) == TYPICAL
    names = graph.tasks.text("name")
    gone = removed_by(graph, select(graph, name="sgemm") | (graph.tasks["mark"] > 0))
    assert [names[row] for row in np.flatnonzero(gone).tolist()] == ["cudaLaunchKernel", "sgemm"]
    kept = removed_by(graph, select(graph, name="sgemm"), calls=False)
    assert [names[row] for row in np.flatnonzero(kept).tolist()] == ["sgemm"]
    simulation = simulate(graph)
    assert [names[row] for row in critical_path(simulation).tolist()] == PATH
    assert {
        key: {name: round(ms, 6) for name, ms in part.items()}
        for key, part in critical_ms(simulation).items()
    } == PATH_MS
    sides = breakdown(simulation)
    assert [
        round(ms, 6) for ms in (sides.cpu_only_ms, sides.device_only_ms, sides.parallel_ms, sides.idle_ms)
    ] == SIDES
    assert graph.serving_threads.tolist() == [True, False, False]
    assert [names[row] for row in np.flatnonzero(graph.of_main_threads).tolist()][:2] == [
        "step 3",
        "aten::mm",
    ]
    own = np.arange(len(graph.trace.events))
    assert inherited(graph, own).tolist() == INHERITED


TYPICAL = (4000, 10_000)
PATH = [
    "step 3",
    "aten::mm",
    "cudaLaunchKernel",
    "sgemm",
    "relu",
    "relu",
    "copy",
    "cudaDeviceSynchronize",
    "step 3",
]
PATH_MS = {"stages": {"forward": 0.55, "other": 0.05, "none": 0.0}, "modules": {"(no module)": 0.6}}
SIDES = [0.087, 0.15, 0.363, 0.0]
INHERITED = [-1, 1, 2, 1, 4, 5, 4, 6, 4, 7, 8, 11, 13, 14, 14, -1, 2, 5, 6, 8]
