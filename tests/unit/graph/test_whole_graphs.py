"""Small recordings with their whole graphs: every task, gap and dependency next to each."""

from __future__ import annotations

import textwrap

import pytest
from drawn import whole

from stepscope.facts.annotate import annotate
from stepscope.graph import build_graph, build_ranks
from stepscope.testing import drawn_trace
from stepscope.trace.concat import concat, of_rank

NODE = "autograd::engine::evaluate_function:"
REDUCE = "ncclDevKernel_AllReduce | corr=4 Process_Group_Name=dp cat=communication"
WAITS = "wait__on__stream=7 wait__on__cuda__event__record__corr__id=2"
CASES = {
    "launches of two streams, and a wait for each": (
        """
        main     |   0 300 | ProfilerStep#3
        main     |  10  30 | aten::mm | seq=1
        main     |  12  16 | cudaLaunchKernel | corr=1
        main     |  40  44 | cudaLaunchKernel | corr=2
        main     |  50  54 | cudaMemcpyAsync | corr=3
        main     |  60 200 | cudaStreamSynchronize
        main     | 210 250 | cudaDeviceSynchronize
        main     | 260 270 | train.py(7): log | cat=python
        main     | 280 290 | Optimizer.step#SGD.step
        stream 7 |  20 100 | sgemm | corr=1 bytes=8
        stream 8 |  70 190 | relu | corr=2
        stream 7 | 105 115 | Memcpy HtoD (Pinned -> Device) | corr=3 bytes=64
        stream 9 | 195 240 | lost
        """,
        """
        steps 300
        CPU, device, both, neither: 85, 160, 55, 0
        path forward 235, none 45, optimizer 20
        cpu main main rank 0
        - 0 step 3 0+10 of 3 other forward mark
        - 10 aten::mm 2+0 of 3 cpu_op forward event 1
        - 12 cudaLaunchKernel 4+0 of 3 runtime forward event 2
        - 16 aten::mm 14+10 of 3 cpu_op forward event 1
        - 40 cudaLaunchKernel 4+6 of 3 runtime forward event 4
        - 50 cudaMemcpyAsync 4+6 of 3 runtime forward event 5
        - 60 cudaStreamSynchronize 0+0 of 3 runtime forward event 6
        - 190 cudaStreamSynchronize 10+10 of 3 runtime forward event 6
        - 210 cudaDeviceSynchronize 0+0 of 3 runtime forward event 10
        - 240 cudaDeviceSynchronize 10+30 of 3 runtime forward event 10
        - 280 Optimizer.step#SGD.step 10+10 of 3 annotation optimizer event 12
        - 300 step 3 0+0 of 3 other mark
        device stream 7 rank 0
        - 20 sgemm 80+5 of 3 kernel gemm forward 8 event 3
        - 105 Memcpy HtoD (Pinned -> Device) 10+0 of 3 memcpy memcpy forward 64 event 8
        device stream 8 rank 0
        - 70 relu 120+0 of 3 kernel elementwise forward event 7
        device stream 9 rank 0
        - 195 lost 45+0 of 3 kernel other event 9
        cudaLaunchKernel (2) > sgemm (12) launch 8
        cudaMemcpyAsync (5) > Memcpy HtoD (Pinned -> Device) (13) launch 19
        cudaLaunchKernel (4) > relu (14) launch 30
        cudaStreamSynchronize (6) > lost (15) launch 135
        Memcpy HtoD (Pinned -> Device) (13) > cudaDeviceSynchronize (9) synchronization 0
        relu (14) > cudaDeviceSynchronize (9) synchronization 0
        lost (15) > cudaDeviceSynchronize (9) synchronization 0
        relu (14) > cudaStreamSynchronize (7) synchronization 0
        """,
    ),
    "a wait for an event, and a copy that blocks its call": (
        """
        main     |   0 200 | ProfilerStep#0
        main     |  10  12 | cudaLaunchKernel    | corr=7
        main     |  12  13 | cudaEventRecord     | corr=8
        main     |  13  14 | cudaStreamWaitEvent | corr=9
        main     |  14  16 | cudaLaunchKernel    | corr=10
        main     |  20 120 | cudaMemcpyAsync     | corr=11
        main     | 130 140 | cudaEventSynchronize | corr=12
        stream 7 |  20  60 | first               | corr=7
        stream 8 |  62  70 | second              | corr=10
        stream 8 |  80 110 | Memcpy DtoH (Device -> Pageable) | corr=11
        """,
        """
        steps 200
        CPU, device, both, neither: 110, 78, 0, 12
        path other 200, none 0
        cpu main main rank 0
        - 0 step 0 0+10 of 0 other other mark
        - 10 cudaLaunchKernel 2+0 of 0 runtime other event 1
        - 12 cudaEventRecord 1+0 of 0 runtime other event 2
        - 13 cudaStreamWaitEvent 1+0 of 0 runtime other event 3
        - 14 cudaLaunchKernel 2+4 of 0 runtime other event 4
        - 20 cudaMemcpyAsync 0+0 of 0 runtime other event 5
        - 110 cudaMemcpyAsync 10+10 of 0 runtime other event 5
        - 130 cudaEventSynchronize 0+0 of 0 runtime other event 9
        - 130 cudaEventSynchronize 10+60 of 0 runtime other event 9
        - 200 step 0 0+0 of 0 other mark
        device stream 7 rank 0
        - 20 first 40+0 of 0 kernel other other event 6
        device stream 8 rank 0
        - 62 second 8+10 of 0 kernel other other event 7
        - 80 Memcpy DtoH (Device -> Pageable) 30+0 of 0 memcpy memcpy other event 8
        cudaLaunchKernel (1) > first (10) launch 10
        cudaLaunchKernel (4) > second (11) launch 10
        cudaMemcpyAsync (5) > Memcpy DtoH (Device -> Pageable) (12) launch 10
        Memcpy DtoH (Device -> Pageable) (12) > cudaMemcpyAsync (6) synchronization 0
        Memcpy DtoH (Device -> Pageable) (12) > cudaEventSynchronize (8) synchronization 0
        first (10) > second (11) synchronization 2
        """,
    ),
    "recorded waits between streams": (
        f"""
        main     |   0 200 | ProfilerStep#0
        main     |  10  11 | cudaLaunchKernel    | corr=1
        main     |  12  13 | cudaEventRecord     | corr=2
        main     |  14  15 | cudaLaunchKernel    | corr=3
        main     |  16  17 | cudaStreamWaitEvent | corr=4
        main     |  18  19 | cudaLaunchKernel    | corr=5
        main     |  20  21 | cudaStreamWaitEvent | corr=6
        main     |  22  23 | cudaLaunchKernel    | corr=7
        main     |  30 150 | cudaStreamSynchronize | corr=8
        stream 7 |  20  60 | first               | corr=1
        stream 7 |  60 100 | second              | corr=3
        stream 8 |  62  70 | third               | corr=5
        stream 9 |  64  80 | fourth              | corr=7
        stream 8 |  16  17 | Stream Wait Event | corr=4 stream=8 {WAITS}
        stream 9 |  20  21 | Stream Wait Event | corr=6 stream=9 wait__on__stream=11
        stream 8 | 140 141 | Stream Synchronize | corr=8 stream=8 cat=sync
        """,
        """
        steps 200
        CPU, device, both, neither: 120, 40, 40, 0
        path other 200, none 0
        cpu main main rank 0
        - 0 step 0 0+10 of 0 other other mark
        - 10 cudaLaunchKernel 1+1 of 0 runtime other event 1
        - 12 cudaEventRecord 1+1 of 0 runtime other event 2
        - 14 cudaLaunchKernel 1+1 of 0 runtime other event 3
        - 16 cudaStreamWaitEvent 1+1 of 0 runtime other event 4
        - 18 cudaLaunchKernel 1+1 of 0 runtime other event 6
        - 20 cudaStreamWaitEvent 1+1 of 0 runtime other event 8
        - 22 cudaLaunchKernel 1+7 of 0 runtime other event 10
        - 30 cudaStreamSynchronize 0+0 of 0 runtime other event 11
        - 70 cudaStreamSynchronize 80+50 of 0 runtime other event 11
        - 200 step 0 0+0 of 0 other mark
        device stream 7 rank 0
        - 20 first 40+0 of 0 kernel other other event 7
        - 60 second 40+0 of 0 kernel other other event 12
        device stream 8 rank 0
        - 62 third 8+0 of 0 kernel other other event 13
        device stream 9 rank 0
        - 64 fourth 16+0 of 0 kernel other other event 14
        cudaLaunchKernel (1) > first (11) launch 10
        cudaLaunchKernel (3) > second (12) launch 26
        cudaLaunchKernel (5) > third (13) launch 26
        cudaLaunchKernel (7) > fourth (14) launch 42
        third (13) > cudaStreamSynchronize (9) synchronization 0
        first (11) > third (13) synchronization 2
        """,
    ),
    "a recorded wait for an event of another stream": (
        f"""
        main     |   0 200 | ProfilerStep#0
        main     |  10  11 | cudaLaunchKernel     | corr=1
        main     |  12  13 | cudaLaunchKernel     | corr=3
        main     |  14  15 | cudaEventRecord      | corr=2
        main     |  16  17 | cudaLaunchKernel     | corr=4
        main     |  30 150 | cudaEventSynchronize | corr=5
        stream 8 |  20  60 | first                | corr=1
        stream 7 |  22  90 | second               | corr=3
        stream 7 |  90 120 | third                | corr=4
        stream 8 | 140 141 | Event Synchronize | corr=5 stream=8 {WAITS} cat=sync
        """,
        """
        steps 200
        CPU, device, both, neither: 100, 60, 40, 0
        path other 200, none 0
        cpu main main rank 0
        - 0 step 0 0+10 of 0 other other mark
        - 10 cudaLaunchKernel 1+1 of 0 runtime other event 1
        - 12 cudaLaunchKernel 1+1 of 0 runtime other event 2
        - 14 cudaEventRecord 1+1 of 0 runtime other event 3
        - 16 cudaLaunchKernel 1+13 of 0 runtime other event 4
        - 30 cudaEventSynchronize 0+0 of 0 runtime other event 7
        - 90 cudaEventSynchronize 60+50 of 0 runtime other event 7
        - 200 step 0 0+0 of 0 other mark
        device stream 8 rank 0
        - 20 first 40+0 of 0 kernel other other event 5
        device stream 7 rank 0
        - 22 second 68+0 of 0 kernel other other event 6
        - 90 third 30+0 of 0 kernel other other event 8
        cudaLaunchKernel (1) > first (8) launch 10
        cudaLaunchKernel (2) > second (9) launch 10
        cudaLaunchKernel (4) > third (10) launch 10
        second (9) > cudaEventSynchronize (6) synchronization 0
        """,
    ),
    "forward, autograd's thread, and a collective's": (
        f"""
        main     |   0 400 | ProfilerStep#0
        main     |  10  30 | aten::mm | seq=1
        main     |  15  25 | aten::empty
        autograd |  50 150 | {NODE} MmBackward0 | seq=1 fwd=1
        autograd |  60  90 | aten::mm
        autograd | 160 170 | {NODE} AddBackward0 | seq=0 fwd=1
        main     | 180 190 | c10d::allreduce_
        gloo     | 190 260 | gloo:all_reduce
        main     | 265 280 | aten::add_
        other    |  20  40 | aten::pin_memory
        other    |  60  80 | aten::pin_memory
        main     | 300 390 | Optimizer.step#SGD.step
        """,
        """
        steps 400
        CPU, device, both, neither: 400, 0, 0, 0
        path optimizer 140, backward 120, other 90, forward 50, none 0
        cpu main main rank 0
        - 0 step 0 0+10 of 0 other forward mark
        - 10 aten::mm 5+0 of 0 cpu_op gemm forward event 1
        - 15 aten::empty 10+0 of 0 cpu_op other forward event 2
        - 25 aten::mm 5+20 of 0 cpu_op gemm forward event 1
        - 50 - 0+0 of 0 other other
        - 50 - 0+0 of 0 other other
        - 170 - 0+10 of 0 other other
        - 180 c10d::allreduce_ 10+0 of 0 cpu_op communication other event 8
        - 190 - 0+0 of 0 other optimizer
        - 190 - 0+0 of 0 other optimizer
        - 260 - 0+5 of 0 other optimizer
        - 265 aten::add_ 15+20 of 0 cpu_op optimizer optimizer event 10
        - 300 Optimizer.step#SGD.step 90+10 of 0 annotation optimizer event 11
        - 400 step 0 0+0 of 0 other mark
        cpu autograd rank 0
        - 50 - 0+0 of 0 other backward
        - 50 autograd::engine::evaluate_function: MmBackward0 10+0 of 0 cpu_op other backward event 4
        - 60 aten::mm 30+0 of 0 cpu_op gemm backward event 5
        - 90 autograd::engine::evaluate_function: MmBackward0 60+10 of 0 cpu_op other backward event 4
        - 160 autograd::engine::evaluate_function: AddBackward0 10+0 of 0 cpu_op other backward event 7
        communication gloo rank 0
        - 190 - 0+0 of 0 other other
        - 190 gloo:all_reduce 70+0 of 0 communication communication other event 9
        cpu other rank 0
        - 20 aten::pin_memory 20+20 of 0 cpu_op other other from 20 event 3
        - 60 aten::pin_memory 20+0 of 0 cpu_op other other event 6
        - (4) > - (14) handover 0
        - (8) > - (19) handover 0
        autograd::engine::evaluate_function: AddBackward0 (18) > - (6) handover 0
        gloo:all_reduce (20) > - (10) handover 0
        """,
    ),
    "a collective that the loop does not wait for": (
        """
        main |   0 200 | ProfilerStep#0
        gloo |  20 100 | gloo:all_reduce
        gloo | 130 160 | gloo:all_reduce
        main |  25 150 | aten::mm
        main | 150 200 | _c10d_functional::wait_tensor
        """,
        """
        steps 200
        CPU, device, both, neither: 200, 0, 0, 0
        path forward 170, other 30, none 0
        cpu main main rank 0
        - 0 step 0 0+20 of 0 other forward mark
        - 20 - 0+5 of 0 other forward
        - 25 aten::mm 105+0 of 0 cpu_op gemm forward event 2
        - 130 aten::mm 20+0 of 0 cpu_op gemm forward event 2
        - 150 - 0+0 of 0 other forward
        - 150 _c10d_functional::wait_tensor 0+0 of 0 cpu_op communication forward event 4
        - 160 _c10d_functional::wait_tensor 40+0 of 0 cpu_op communication forward event 4
        - 200 step 0 0+0 of 0 other mark
        communication gloo rank 0
        - 20 - 0+0 of 0 other other
        - 20 gloo:all_reduce 80+0 of 0 communication communication other event 1
        - 130 - 0+0 of 0 other other
        - 130 gloo:all_reduce 30+0 of 0 communication communication other event 3
        - (1) > - (8) handover 0
        aten::mm (3) > - (10) handover -20
        gloo:all_reduce (11) > _c10d_functional::wait_tensor (6) handover 0
        """,
    ),
    "kernels alone": (
        """
        stream 7 |   0  40 | sgemm
        stream 8 |   5  10 | copy
        stream 7 |  45  90 | relu
        stream 8 |  50  60 | copy
        stream 8 |  61  62 | copy
        """,
        """
        steps 90
        CPU, device, both, neither: 5, 0, 85, 0
        path none 90
        device stream 7 main rank 0
        - 0 step 0 0+0 of 0 other mark
        - 0 sgemm 40+5 of 0 kernel gemm event 0
        - 45 relu 45+0 of 0 kernel elementwise event 2
        - 90 step 0 0+0 of 0 other mark
        device stream 8 rank 0
        - 5 copy 5+0 of 0 kernel elementwise from 5 event 1
        - 50 copy 10+0 of 0 kernel elementwise event 3
        - 61 copy 1+0 of 0 kernel elementwise event 4
        sgemm (1) > copy (4) synchronization -35
        relu (2) > copy (5) synchronization -40
        relu (2) > copy (6) synchronization -29
        """,
    ),
    "steps with work of earlier ones": (
        """
        main     |   0 100 | ProfilerStep#4
        main     |  10  12 | cudaLaunchKernel | corr=7
        main     | 100 200 | ProfilerStep#5
        main     | 110 112 | cudaLaunchKernel | corr=8
        main     | 120 340 | cudaDeviceSynchronize
        stream 7 |  -90 -10 | queued
        stream 7 |  -10 120 | queued too
        stream 7 | 120 250 | first            | corr=7
        stream 7 | 255 330 | second           | corr=8
        """,
        """
        steps 130 80
        CPU, device, both, neither: 0, 102.5, 0, 2.5
        path other 105
        cpu main main rank 0
        - 0 step 4 0+10 of 4 other other mark
        - 10 cudaLaunchKernel 2+88 of 4 runtime other event 3
        - 100 step 5 0+10 of 5 other other mark
        - 110 cudaLaunchKernel 2+8 of 5 runtime other event 5
        - 120 cudaDeviceSynchronize 0+0 of 5 runtime other event 6
        - 120 step 5 0+0 of 5 other mark
        - 330 - 0+0 of 5 other
        device stream 7 rank 0
        - 0 queued too 120+0 of -2 kernel other other event 1
        - 120 first 130+5 of 4 kernel other other event 7
        - 255 second 75+0 of 5 kernel other other event 8
        cudaLaunchKernel (1) > first (8) launch 10
        cudaLaunchKernel (3) > second (9) launch 10
        second (9) > - (6) synchronization 0
        """,
    ),
    "work of a CUDA graph that is not listed": (
        """
        main     |   0 250 | ProfilerStep#0
        main     |  10  12 | cudaLaunchKernel | corr=7
        main     |  20  24 | cudaGraphLaunch  | corr=8
        main     |  30  32 | cudaLaunchKernel | corr=9
        stream 7 |  20  40 | first            | corr=7
        stream 7 | 150 160 | of_the_graph     | corr=8
        stream 7 | 200 230 | after            | corr=9
        """,
        """
        steps 250
        CPU, device, both, neither: 40, 0, 210, 0
        path other 250, none 0
        cpu main main rank 0
        - 0 step 0 0+10 of 0 other other mark
        - 10 cudaLaunchKernel 2+8 of 0 runtime other event 1
        - 20 cudaGraphLaunch 4+6 of 0 runtime other event 3
        - 30 cudaLaunchKernel 2+218 of 0 runtime other event 4
        - 250 step 0 0+0 of 0 other mark
        device stream 7 rank 0
        - 20 first 20+0 of 0 kernel other other event 2
        - 40 work of a CUDA graph, not listed 110+0 of 0 kernel other other
        - 150 of_the_graph 10+0 of 0 kernel other other event 5
        - 160 work of a CUDA graph, not listed 40+0 of 0 kernel other other
        - 200 after 30+0 of 0 kernel other other event 6
        cudaLaunchKernel (1) > first (5) launch 10
        cudaGraphLaunch (2) > of_the_graph (7) launch 10
        cudaLaunchKernel (3) > after (9) launch 10
        cudaGraphLaunch (2) > work of a CUDA graph, not listed (6) launch 10
        cudaGraphLaunch (2) > work of a CUDA graph, not listed (8) launch 10
        """,
    ),
    "work that begins late": (
        """
        main     |   0 900 | ProfilerStep#0
        main     |   5   6 | cudaLaunchKernel | corr=1
        main     |  20  21 | cudaLaunchKernel | corr=2
        main     |  22  23 | cudaLaunchKernel | corr=3
        main     |  24  25 | cudaLaunchKernel | corr=4
        main     |  26  27 | cudaLaunchKernel | corr=5
        stream 7 |  15  25 | before  | corr=1
        stream 8 |  30 430 | large   | corr=2
        stream 7 | 425 525 | fills   | corr=3
        stream 9 | 540 600 | soon    | corr=4
        stream 10 | 650 700 | far    | corr=5
        """,
        """
        steps 900
        CPU, device, both, neither: 285, 0, 615, 0
        path other 900, none 0
        cpu main main rank 0
        - 0 step 0 0+5 of 0 other other mark
        - 5 cudaLaunchKernel 1+14 of 0 runtime other event 1
        - 20 cudaLaunchKernel 1+1 of 0 runtime other event 3
        - 22 cudaLaunchKernel 1+1 of 0 runtime other event 4
        - 24 cudaLaunchKernel 1+1 of 0 runtime other event 5
        - 26 cudaLaunchKernel 1+873 of 0 runtime other event 6
        - 900 step 0 0+0 of 0 other mark
        device stream 7 rank 0
        - 15 before 10+0 of 0 kernel other other event 2
        - 425 fills 100+0 of 0 kernel elementwise other event 8
        device stream 8 rank 0
        - 30 large 400+0 of 0 kernel other other event 7
        device stream 9 rank 0
        - 540 soon 60+0 of 0 kernel other other event 9
        device stream 10 rank 0
        - 650 far 50+0 of 0 kernel other other event 10
        cudaLaunchKernel (1) > before (7) launch 10
        cudaLaunchKernel (3) > fills (8) launch 10
        cudaLaunchKernel (2) > large (9) launch 10
        cudaLaunchKernel (4) > soon (10) launch 10
        cudaLaunchKernel (5) > far (11) launch 10
        fills (8) > soon (10) synchronization 15
        large (9) > fills (8) synchronization -5
        soon (10) > far (11) synchronization 50
        """,
    ),
    "calls of XLA": (
        """
        main     |     0  5050 | ProfilerStep#0
        main     |    10  5000 | PjitFunction(update)
        main     |    20    24 | cuGraphLaunch | corr=7 cat=runtime
        main     |  5050 15000 | ProfilerStep#1
        main     |  5100 11000 | PjitFunction(update)
        main     |  5110  5114 | cuGraphLaunch | corr=8 cat=runtime
        main     |  6000  6100 | Execute | cat=runtime
        main     | 11100 12000 | wait: block_until_ready | cat=runtime
        stream 7 |    30 10800 | first         | corr=7
        stream 7 | 10800 11900 | second        | corr=8
        """,
        """
        steps 5050 9950
        CPU, device, both, neither: 1565, 2750, 3185, 0
        path other 7500, none 0
        cpu main main rank 0
        - 0 step 0 0+10 of 0 other other mark
        - 10 PjitFunction(update) 10+0 of 0 cpu_op other event 1
        - 20 cuGraphLaunch 4+0 of 0 runtime other event 2
        - 24 PjitFunction(update) 4976+50 of 0 cpu_op other event 1
        - 5050 step 1 0+50 of 1 other other mark
        - 5100 PjitFunction(update) 10+0 of 1 cpu_op other event 5
        - 5110 cuGraphLaunch 4+0 of 1 runtime other event 6
        - 5114 PjitFunction(update) 886+0 of 1 cpu_op other event 5
        - 6000 Execute 100+0 of 1 runtime other event 7
        - 6100 PjitFunction(update) 0+0 of 1 cpu_op other event 5
        - 10800 PjitFunction(update) 200+100 of 1 cpu_op other event 5
        - 11100 wait: block_until_ready 0+0 of 1 runtime other event 9
        - 11900 wait: block_until_ready 100+3000 of 1 runtime other event 9
        - 15000 step 1 0+0 of 1 other mark
        device stream 7 rank 0
        - 30 first 10770+0 of 0 kernel other other event 3
        - 10800 second 1100+0 of 1 kernel other other event 8
        cuGraphLaunch (2) > first (14) launch 10
        cuGraphLaunch (6) > second (15) launch 10
        second (15) > wait: block_until_ready (12) synchronization 0
        first (14) > PjitFunction(update) (10) synchronization 0
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_whole_graph(name: str) -> None:
    text, expected = CASES[name]
    assert whole(build_graph(annotate(drawn_trace(text))).check()) == textwrap.dedent(expected).strip("\n")


def transfer(number: int, way: str, peer: int) -> str:
    key = {"send": "Dst_Rank", "recv": "Src_Rank"}[way]
    return f"ncclDevKernel_SendRecv | corr={number} Collective_name={way} {key}={peer} cat=communication"


@pytest.mark.parametrize("apart", [False, True])
def test_ranks_that_send_and_reduce(apart: bool) -> None:
    ranks = []
    for rank, (ready, way) in enumerate(((100, "send"), (60, "recv"))):
        text = f"""
        main      |   0 300 | ProfilerStep#0
        main      |  10  12 | cudaLaunchKernel | corr=1
        main      |  14  16 | cudaLaunchKernel | corr=2
        main      |  22  24 | cudaLaunchKernel | corr=4
        main      |  30 290 | cudaDeviceSynchronize
        stream 7  |  20 {ready} | compute | corr=1
        stream 20 | {ready + 2} 130 | {transfer(2, way, 1 - rank)}
        stream 22 | {200 + 10 * rank} {260 - 10 * rank} | {REDUCE}
        """
        ranks.append(of_rank(annotate(drawn_trace(text)), rank))
    if apart:
        ranks[1] = ranks[1].with_metadata(origin_ns=10**15)
    expected = APART if apart else TOGETHER
    assert whole(build_ranks(concat(ranks)).check()) == textwrap.dedent(expected).strip("\n")


TOGETHER = """
    steps 300
    CPU, device, both, neither: 65, 123, 10, 102
    path other 300, none 0
    cpu main main rank 0
    - 0 step 0 0+10 of 0 other other mark
    - 10 cudaLaunchKernel 2+2 of 0 runtime other event 2
    - 14 cudaLaunchKernel 2+6 of 0 runtime other event 4
    - 22 cudaLaunchKernel 2+6 of 0 runtime other event 8
    - 30 cudaDeviceSynchronize 0+0 of 0 runtime other event 10
    - 260 cudaDeviceSynchronize 30+10 of 0 runtime other event 10
    - 300 step 0 0+0 of 0 other mark
    device stream 7 rank 0
    - 20 compute 80+0 of 0 kernel other other event 6
    device stream 20 rank 0
    - 102 arrival 0+0 of 0 other other other
    - 102 ncclDevKernel_SendRecv 28+0 of 0 communication communication other event 13
    device stream 22 rank 0
    - 200 arrival 0+0 of 0 other other other
    - 210 ncclDevKernel_AllReduce 50+0 of 0 communication communication other event 14
    cpu main main rank 1
    - 0 step 0 0+10 of 0 other other mark
    - 10 cudaLaunchKernel 2+2 of 0 runtime other event 3
    - 14 cudaLaunchKernel 2+6 of 0 runtime other event 5
    - 22 cudaLaunchKernel 2+6 of 0 runtime other event 9
    - 30 cudaDeviceSynchronize 0+0 of 0 runtime other event 11
    - 250 cudaDeviceSynchronize 40+10 of 0 runtime other event 11
    - 300 step 0 0+0 of 0 other mark
    device stream 7 rank 1
    - 20 compute 40+0 of 0 kernel other other event 7
    device stream 20 rank 1
    - 62 arrival 0+0 of 0 other other other
    - 102 ncclDevKernel_SendRecv 28+0 of 0 communication communication other event 12
    device stream 22 rank 1
    - 210 arrival 0+0 of 0 other other other
    - 210 ncclDevKernel_AllReduce 40+0 of 0 communication communication other event 15
    communication meetings rank 0
    - 210 all arrived 0+0 of None other
    - 102 all arrived 0+0 of None other
    cudaLaunchKernel (1) > compute (7) launch 10
    cudaLaunchKernel (2) > arrival (8) launch 88
    cudaLaunchKernel (3) > arrival (10) launch 178
    compute (7) > cudaDeviceSynchronize (5) synchronization 0
    ncclDevKernel_SendRecv (9) > cudaDeviceSynchronize (5) communication 0
    ncclDevKernel_AllReduce (11) > cudaDeviceSynchronize (5) communication 0
    cudaLaunchKernel (13) > compute (19) launch 10
    cudaLaunchKernel (14) > arrival (20) launch 48
    cudaLaunchKernel (15) > arrival (22) launch 188
    compute (19) > cudaDeviceSynchronize (17) synchronization 0
    ncclDevKernel_SendRecv (21) > cudaDeviceSynchronize (17) communication 0
    ncclDevKernel_AllReduce (23) > cudaDeviceSynchronize (17) communication 0
    arrival (10) > all arrived (24) communication 0
    arrival (22) > all arrived (24) communication 0
    arrival (8) > all arrived (25) communication 0
    arrival (20) > all arrived (25) communication 0
    all arrived (24) > ncclDevKernel_AllReduce (11) communication 0
    all arrived (24) > ncclDevKernel_AllReduce (23) communication 0
    all arrived (25) > ncclDevKernel_SendRecv (9) communication 0
    all arrived (25) > ncclDevKernel_SendRecv (21) communication 0
    """
APART = (
    TOGETHER.replace("steps 300", "steps 295")
    .replace("neither: 65, 123,", "neither: 65, 118,")
    .replace("- 260 cudaDeviceSynchronize", "- 250 cudaDeviceSynchronize", 1)
    .replace("- 300 step 0", "- 290 step 0", 1)
    .replace("- 210 ncclDevKernel_AllReduce 50", "- 210 ncclDevKernel_AllReduce 40", 1)
)
