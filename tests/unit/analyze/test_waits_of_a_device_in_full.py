"""Findings in full where a device waits: for Python, calls, copies, data and other devices."""

from __future__ import annotations

from drawn_findings import DEVICE, JAX, NODE, WAIT, Case, Limit, from_limit_on, in_full, repeated


def launches(
    count: int,
    name: str,
    us: float,
    every: float,
    operator: str = "aten::add",
    begin: float = 10,
    first: int = 100,
    call: str = "cudaLaunchKernel",
) -> str:
    """Operators that launch a kernel each, so many us after each other."""
    rows = []
    for number in range(count):
        at = begin + number * every
        rows += [
            f"main | {at} {at + 1.5} | {operator}",
            f"main | {at + 0.2} {at + 1} | {call} | corr={first + number}",
            f"stream 7 | {at + 2} {at + 2 + us} | {name} | corr={first + number}",
        ]
    return "\n".join(rows)


COLLECTIVE = """
    main      | 10 12 | aten::mm
    main      | 10 12 | cudaLaunchKernel | corr=1
    stream 7  | 20 {end} | volta_gemm | corr=1
    main      | 14 16 | cudaLaunchKernel | corr=2
    stream 20 | 100 990 | ncclDevKernel_AllReduce_Sum_f32 | corr=2
"""

IDLE = """
    main     |    10    20 | cudaLaunchKernel | corr=1
    main     |  {begin} {end} | cudaGetDeviceProperties_v2
    main     | 99000 99010 | cudaLaunchKernel | corr=2
    stream 7 |    30   400 | a                | corr=1
    stream 7 | 99020 99900 | b                | corr=2
"""

LOADING = """
    main     | 10 12 | aten::mm
    main     | 10 12 | cudaLaunchKernel | corr=1
    stream 7 | 20 200 | volta_gemm | corr=1
    main     | 210 {end} | enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__
    main     | {end} 905 | aten::mm
    main     | {end} 905 | cudaLaunchKernel | corr=2
    stream 7 | {begin} 995 | volta_gemm | corr=2
"""

SYNC = """
    main     |   10   20 | aten::mm
    main     |   12   14 | cudaLaunchKernel      | corr=1
    stream 7 |   20  420 | volta_gemm   | corr=1
    main     |   30  440 | aten::item
    main     |   31  439 | aten::_local_scalar_dense
    main     |   32   36 | cudaMemcpyAsync       | corr=2
    main     |   37  438 | cudaStreamSynchronize | corr=3
    stream 7 |  421  422 | Memcpy DtoH (Device -> Pageable) | corr=2
    main     |  500  510 | aten::mm
    main     |  502  504 | cudaLaunchKernel      | corr=4
    stream 7 |  510  990 | volta_gemm   | corr=4
    main     |  520  530 | aten::item
"""

STALL = """
    main     |   10   12 | aten::mm
    main     |   10   11 | cudaLaunchKernel | corr=1
    stream 7 |   20  100 | volta_gemm | corr=1
    main     |   50 9600 | train.py(3): main
    main     |  200 {end} | {frame} | cat=python
    main     | 9500 9510 | aten::mm
    main     | 9500 9501 | cudaLaunchKernel | corr=2
    stream 7 | 9510 9900 | volta_gemm | corr=2
"""


def stalled(frame: str = "log.py(9): run", end: float = 9000, more: str = "") -> str:
    return repeated(STALL.format(frame=frame, end=end) + more, 10_000)


IDLE_OF = """
    main     |    0   2 | cudaLaunchKernel | corr=1
    stream 7 |    5 100 | volta_gemm | corr=1
    main     |   10 {end} | train.py(3): run
    main     | {end} 1602 | cudaLaunchKernel | corr=2
    stream 7 | 1605 29990 | volta_gemm | corr=2
    main     | 1700 29995 | cudaDeviceSynchronize
"""

EXPLICIT = """
    main     |  10  12 | cudaLaunchKernel | corr=1
    stream 7 |  20 420 | volta_gemm   | corr=1
    main     |  40 430 | cudaStreamSynchronize
    main     | 500 504 | cudaLaunchKernel      | corr=4
    stream 7 | 510 800 | volta_gemm   | corr=4
    main     | 520 810 | {call}
    main     | 900 904 | cudaLaunchKernel      | corr=5
    stream 7 | 910 990 | volta_gemm   | corr=5
"""

READING = """
    main     |  10  12 | cudaLaunchKernel | corr=1
    stream 7 |  20 420 | volta_gemm | corr=1
    main     |  30  34 | cudaMemcpyAsync | corr=2
    stream 7 | 421 422 | Memcpy DtoH (Device -> Pinned) | corr=2
    main     |  40 430 | cudaStreamSynchronize | corr=3
    main     | 700 704 | cudaLaunchKernel | corr=4
    stream 7 | 710 990 | volta_gemm | corr=4
"""

LATE_LAUNCH = """
    main      | 10 12 | cudaLaunchKernel | corr=1
    stream 7  | 20 200 | volta_gemm | corr=1
    main      | 14 16 | cudaLaunchKernel | corr=2
    stream 20 | 200 500 | ncclDevKernel_AllReduce_Sum_f32 | corr=2
    main      | 480 488 | aten::mm
    main      | 481 483 | cudaStreamWaitEvent
    main      | 484 486 | cudaLaunchKernel | corr=3
    stream 7  | 505 3990 | volta_gemm | corr=3
    main      | 600 3995 | cudaDeviceSynchronize
"""

LAUNCHED = """
    main     |    10    20 | cudaLaunchKernel | corr=1
    main     |    22    24 | cudaLaunchKernel | corr=2
    main     |    25    27 | cudaLaunchKernel | corr=3
    stream 7 |    10   400 | a                | corr=1
    stream 7 | 99020 99900 | b                | corr=2
    stream 7 | 99900 99950 | c                | corr=3
"""

CASES = {
    "Python that stalls": Case(
        "python_stall",
        stalled(),
        """
        Python stalls the step: the device idles 9.4 ms per step (94%).
        The loop runs nothing else then.
        Mostly in log.py:9 in run.
        -> Move this work to the device, another thread, or every N-th step of the loop.
        critical: 9.4 of 10 ms, 0 to 9.4
        at most this idle time
        * log.py(9): run × 1, 8.8 ms, log.py:9 in run
        """,
    ),
    "a sleep": Case(
        "python_stall",
        stalled("<built-in function sleep>"),
        """
        Python stalls the step: the device idles 9.4 ms per step (94%).
        The loop runs nothing else then.
        Mostly in <built-in function sleep>, called by train.py:3 in main.
        -> Remove the sleep from the loop.
        critical: 9.4 of 10 ms, 0 to 9.4
        at most this idle time
        * <built-in function sleep> × 1, 8.8 ms, train.py:3 in main
        """,
    ),
    "a log": Case(
        "python_stall",
        stalled("x.py(9): write_log"),
        """
        Python stalls the step: the device idles 9.4 ms per step (94%).
        The loop runs nothing else then.
        Mostly in x.py:9 in write_log.
        -> Log less often, or hand the values to another thread.
        critical: 9.4 of 10 ms, 0 to 9.4
        at most this idle time
        * x.py(9): write_log × 1, 8.8 ms, x.py:9 in write_log
        """,
    ),
    "metrics": Case(
        "python_stall",
        stalled("x.py(9): compute_metric"),
        """
        Python stalls the step: the device idles 9.4 ms per step (94%).
        The loop runs nothing else then.
        Mostly in x.py:9 in compute_metric.
        -> Update metrics on the device, and compute them only every N steps.
        critical: 9.4 of 10 ms, 0 to 9.4
        at most this idle time
        * x.py(9): compute_metric × 1, 8.8 ms, x.py:9 in compute_metric
        """,
    ),
    "garbage": Case(
        "python_stall",
        stalled("<built-in method collect of module>"),
        """
        Python stalls the step: the device idles 9.4 ms per step (94%).
        The loop runs nothing else then.
        Mostly in <built-in method collect of module>, called by train.py:3 in main.
        -> Call gc.freeze() after setup and gc.collect() only every N steps.
        critical: 9.4 of 10 ms, 0 to 9.4
        at most this idle time
        * <built-in method collect of module> × 1, 8.8 ms, train.py:3 in main
        """,
    ),
    "an average": Case(
        "python_stall",
        stalled("x.py(9): update_ema"),
        """
        Python stalls the step: the device idles 9.4 ms per step (94%).
        The loop runs nothing else then.
        Mostly in x.py:9 in update_ema.
        -> Update the moving average with torch._foreach_lerp_ on the device.
        critical: 9.4 of 10 ms, 0 to 9.4
        at most this idle time
        * x.py(9): update_ema × 1, 8.8 ms, x.py:9 in update_ema
        """,
    ),
    "a path that says nothing": Case(
        "python_stall",
        stalled("/me/sleep.py(9): run"),
        """
        Python stalls the step: the device idles 9.4 ms per step (94%).
        The loop runs nothing else then.
        Mostly in /me/sleep.py:9 in run.
        -> Move this work to the device, another thread, or every N-th step of the loop.
        critical: 9.4 of 10 ms, 0 to 9.4
        at most this idle time
        * /me/sleep.py(9): run × 1, 8.8 ms, /me/sleep.py:9 in run
        """,
    ),
    "Python of training": Case(
        "python_stall",
        stalled(more="\n    main | 9600 9610 | Optimizer.step#SGD.step"),
        """
        Python stalls the step: the device idles 9.4 ms per step (94%).
        The loop runs nothing else then.
        Mostly in log.py:9 in run.
        -> Move this work to the device, another thread, loader workers, or every N-th step of the
        training loop.
        critical: 9.4 of 10 ms, 0 to 9.4
        at most this idle time
        * log.py(9): run × 1, 8.8 ms, log.py:9 in run
        """,
    ),
    "explicit waits": Case(
        "synchronizing_calls",
        repeated(EXPLICIT.format(call="cudaDeviceSynchronize")),
        """
        The step calls an explicit synchronization 2 times (cudaDeviceSynchronize,
        cudaStreamSynchronize).
        -> Remove torch.cuda.synchronize() from the loop; use CUDA events for timing.
        critical: 0.22 of 1 ms, 0 to 0.22
        what-if no_sync
        no_sync:name=cudaDeviceSynchronize + no_sync:name=cudaStreamSynchronize
        * cudaStreamSynchronize × 1, 0.39 ms, other
        * cudaDeviceSynchronize × 1, 0.29 ms, other
        """,
    ),
    "explicit waits for events": Case(
        "synchronizing_calls",
        repeated(
            EXPLICIT.replace("cudaStreamSynchronize", "cudaEventSynchronize").format(
                call="cudaEventSynchronize"
            )
        ),
        """
        The step calls an explicit synchronization 2 times (cudaEventSynchronize).
        -> Wait for the event a step later, or ask without waiting whether it has come
        (event.query()).
        critical: 0.22 of 1 ms, 0 to 0.22
        what-if no_sync
        no_sync:name=cudaEventSynchronize
        * cudaEventSynchronize × 2, 0.68 ms, other
        """,
    ),
    "a copy that is read": Case(
        "synchronizing_calls",
        repeated(READING),
        """
        Each step copies from the device once, blocking the CPU.
        Such copies are .cpu(), .to('cpu'), .tolist(), .numpy(), print.
        -> Copy into pinned memory with non_blocking=True and read the value a step later.
        critical: 0.308 of 1 ms, 0.307308 to 0.308692
        what-if no_sync
        no_sync:awaits=Memcpy DtoH (Device -> Pinned)
        * cudaStreamSynchronize × 1, 0.39 ms, other
        """,
    ),
    "a copy that is read in JAX": Case(
        "synchronizing_calls",
        repeated(READING),
        """
        Each step copies from the device once, blocking the CPU.
        Such copies are float(x), x.item(), np.asarray(x), jax.device_get, print.
        -> Keep the value on the device and read it only every N steps.
        critical: 0.308 of 1 ms, 0.307308 to 0.308692
        what-if no_sync
        no_sync:awaits=Memcpy DtoH (Device -> Pinned)
        * cudaStreamSynchronize × 1, 0.39 ms, other
        """,
        metadata=JAX,
    ),
    "slow launches": Case(
        "cpu_latency",
        repeated(launches(10, "volta_gemm", 5, 90)),
        """
        The CPU launches work too slowly, mostly in forward.
        The device is idle for 93% of the step because the CPU has launched nothing and for 2% of
        the step although work is launched.
        -> Launch fewer, larger kernels: torch.compile (mode='reduce-overhead' replays CUDA
        graphs), more samples at once.
        critical: 0.8115 of 1 ms, 0.8011325 to 0.8218675
        what-if cuda_graphs
        cuda_graphs
        * aten::add × 10, 0.015 ms, forward
        """,
    ),
    "slow launches in JAX": Case(
        "cpu_latency",
        repeated(launches(10, "volta_gemm", 5, 90)),
        """
        The CPU launches work too slowly, mostly in forward.
        The device is idle for 93% of the step because the CPU has launched nothing and for 2% of
        the step although work is launched.
        -> Launch fewer, larger programs: the whole step under one jax.jit, several steps in one
        call (jax.lax.scan).
        critical: 0.8115 of 1 ms, 0.8011325 to 0.8218675
        what-if cuda_graphs
        cuda_graphs
        * aten::add × 10, 0.015 ms, forward
        """,
        metadata=JAX,
    ),
    "slow launches of training": Case(
        "cpu_latency",
        repeated(
            launches(4, "volta_gemm", 5, 90)
            + "\n"
            + launches(5, "volta_gemm", 5, 90, f"{NODE} MmBackward0", 370, 200)
            + "\nmain | 960 970 | Optimizer.step#SGD.step"
        ),
        """
        The CPU launches work too slowly.
        The device is idle for 94% of the step because the CPU has launched nothing and for 2% of
        the step although work is launched.
        -> Launch fewer, larger kernels: torch.compile (mode='reduce-overhead' replays CUDA
        graphs), a larger batch, a fused optimizer.
        critical: 0.9491 of 1 ms, 0.9463005 to 0.9518995
        what-if cuda_graphs
        cuda_graphs
        * autograd::engine::evaluate_function: MmBackward0 × 5, 0.0075 ms, backward
        * aten::add × 4, 0.006 ms, forward
        """,
    ),
    "slow launches without graphs": Case(
        "cpu_latency",
        repeated(launches(10, "volta_gemm", 5, 90, call="runFunction")),
        """
        The CPU launches work too slowly, mostly in forward.
        The device is idle for 95% of the step because the CPU has launched nothing.
        -> Launch fewer, larger kernels: torch.compile, more samples at once.
        critical: 0.8115 of 1 ms, 0 to 0.8115
        what-if cuda_graphs, if it were launched as fast as by a graph
        cuda_graphs
        * aten::add × 10, 0.015 ms, forward
        """,
    ),
    "long gaps after some": Case(
        "cpu_latency",
        repeated(launches(10, "volta_gemm", 50, 90) + "\nmain | 3000 3001 | aten::add", 4000),
        """
        The CPU launches work too slowly, mostly in other.
        The device is idle for 87% of the step because the CPU has launched nothing; 22% of the
        step is in short gaps.
        -> Launch fewer, larger kernels: torch.compile (mode='reduce-overhead' replays CUDA
        graphs), more samples at once.
        critical: 0.8115 of 4 ms, 0.6361325 to 0.867
        what-if cuda_graphs
        cuda_graphs
        * aten::add × 10, 0.015 ms, forward
        * aten::add × 1, 0.001 ms, other
        """,
    ),
    "a collective": Case(
        "exposed_communication",
        repeated(COLLECTIVE.format(end=200) + WAIT),
        """
        Communication is exposed for 0.79 ms of the step (79%).
        Another 0.1 ms overlaps with computation.
        -> Overlap collectives with other work, send less data (16 bits), and check whether one
        rank is late.
        critical: 0.79 of 1 ms, 0 to 0.79
        simulated, at most: with collectives that take no time
        scale:select=category=communication,factor=0
        * ncclDevKernel_AllReduce_Sum_f32 × 1, 0.89 ms, forward
        """,
        metadata=DEVICE,
    ),
    "idle beside a call": Case(
        "idle_device",
        repeated(IDLE.format(begin=30_000, end=90_000), 100_000),
        """
        The device idles 99% of the step while the CPU launches nothing.
        That is 98.7 ms per step, mostly in cudaGetDeviceProperties_v2.
        -> Shorten or move what the CPU does there.
        warning: 98.71 of 100 ms, 0 to 98.71
        at most this idle time
        * cudaGetDeviceProperties_v2 × 1, 60 ms, other
        """,
    ),
    "idle for no reason": Case(
        "idle_device",
        repeated(IDLE.format(begin=50_000, end=50_050), 100_000),
        """
        The device idles 99% of the step while the CPU launches nothing.
        That is 98.7 ms per step.
        Nothing recorded explains it: no call or range takes half of this time by itself.
        -> Find out what the CPU does there.
        warning: 98.71 of 100 ms, 0 to 98.71
        at most this idle time
        * cudaGetDeviceProperties_v2 × 1, 0.05 ms, other
        """,
    ),
    "a collective that the CPU would take as long as": Case(
        "exposed_communication", repeated(LATE_LAUNCH, 4000), metadata=DEVICE
    ),
    "idle after a launch": Case(
        "idle_device",
        repeated(LAUNCHED, 100_000),
        """
        The device idles 99% of the step although work was launched.
        That is 98.6 ms per step.
        -> Find the stream or the event that it waits for.
        warning: 98.62 of 100 ms, 0 to 98.62
        at most this idle time
        * b × 0.5, 0.44 ms, other
        """,
    ),
    "a batch that is late": Case(
        "input_bound",
        repeated(LOADING.format(end=900, begin=910)),
        """
        The device idles 69% of the step while batches load.
        They load in the main process (num_workers=0).
        -> Load batches in worker processes: DataLoader(num_workers=…, persistent_workers=True).
        critical: 0.69 of 1 ms, 0 to 0.69
        what-if dataloader, at most: with batches that are always ready
        dataloader
        * enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__ × 1, 0.69 ms, data_loading
        """,
        metadata=DEVICE,
    ),
    "a wait": Case(
        "synchronizing_calls",
        repeated(SYNC),
        """
        Each step calls .item(), float(), bool() or `if` once.
        Each call on a tensor blocks the CPU until the device is done.
        -> Keep the value in a tensor, and read it only every N steps.
        warning: 0.108 of 1 ms, 0.107108 to 0.108892
        what-if no_sync
        no_sync:operator=aten::item
        * aten::item × 1, 0.41 ms, forward
        """,
    ),
}

LIMITS = {
    "stalls of 5 % of the step": Limit(
        "python_stall", repeated(IDLE_OF.format(end=1600), 30_000), repeated(IDLE_OF.format(end=1599), 30_000)
    )
}


test_a_finding_in_full = in_full(CASES)
test_a_rule_finds_from_its_limit_on = from_limit_on(LIMITS)
