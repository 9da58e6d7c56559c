"""Each rule's finding in full, on a device: what it says, advises and saves, where, and decoys."""

from __future__ import annotations

import textwrap

import pytest
from drawn_findings import A100, Case, Limit, alone, repeated, told

NODE = "autograd::engine::evaluate_function:"
DEVICE = {"devices": A100}
JAX = {"devices": A100, "framework": "jax"}


def work(
    number: int,
    name: str,
    begin: float,
    end: float,
    operator: str = "aten::mm",
    more: str = "",
    kernel: str = "",
) -> str:
    """An operator early in the step, and the kernel that it launches."""
    at = 4 * number
    return f"""
    main     | {at} {at + 3} | {operator} | {more}
    main     | {at + 1} {at + 2} | cudaLaunchKernel | corr={number}
    stream 7 | {begin} {end} | {name} | corr={number} {kernel}
    """


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


BUSY = work(1, "volta_gemm", 10, 600)

# -- memory of the driver


def allocating(
    first: str, second: str, until: float = 500, around: str = "", doing: int = 2, times: int = 2
) -> str:
    """Two calls of 200 and 100 us in some of the steps, in an operator or not; and other calls."""
    inside = """
    main | 650 660 | aten::empty
    main | 700 710 | cudaMallocArray
    main | 720 730 | cudaMalloc | cat=cpu_op
    """
    calls = f"""
    {f"main | 95 {until + 1} | {around}" if around else ""}
    main | 100 300 | {first} | cat=runtime
    main | 400 {until} | {second} | cat=runtime
    """
    text = repeated(BUSY + inside, times=times)
    return (
        text
        + "\n"
        + "\n".join(line for line in repeated(calls, times=doing).splitlines() if "ProfilerStep" not in line)
    )


# -- chains of kernels


WAIT = "\nmain | 100 995 | cudaDeviceSynchronize"


def chain(count: int, us: float, every: float = 0, name: str = "vectorized_elementwise_kernel") -> str:
    """Steps that wait for a product, and for kernels in a row after it."""
    at = 990 - count * (us + every)
    rows = [work(1, "volta_gemm", 10, at)]
    for number in range(count):
        call = 12 + 2 * number
        rows += [
            f"main | {call} {call + 1.4} | aten::add",
            f"main | {call + 0.1} {call + 1} | cudaLaunchKernel | corr={10 + number}",
            f"stream 7 | {at} {at + us} | {name} | corr={10 + number}",
        ]
        at += us + every
    return repeated("\n".join(rows) + WAIT)


SOFTMAX = work(1, "volta_gemm", 20, 690) + work(2, "cunn_SoftMaxForward", 690, 990) + WAIT


def hot(us: float, name: str = "sort_kernel", operator: str = "aten::mm") -> str:
    """A kernel beside a product, in a step of 1 ms that the device fills."""
    parts = work(1, "volta_gemm", 20, 990 - us), work(2, name, 990 - us, 990, operator)
    return repeated("".join(parts) + WAIT)


INDEXING = """
    main     |   10   20 | aten::index | seq=5
    main     |   12   14 | cudaLaunchKernel      | corr=1
    stream 7 |   20   30 | index_kernel          | corr=1
    main     |  100  120 | IndexBackward0 | seq=5 fwd=1
    main     |  102  118 | aten::_index_put_impl_
    main     |  104  106 | cudaLaunchKernel      | corr=2
    stream 7 |  110  {end} | indexing_backward_kernel | corr=2
    main     |  130  140 | aten::mm
    main     |  132  134 | cudaLaunchKernel      | corr=3
    stream 7 |  {end} 990 | volta_gemm | corr=3
"""


def indexing(us: float) -> str:
    return repeated(INDEXING.format(end=110 + us))


def layouts(count: int, kernel: str = "cudnn::ops::nchwToNhwcKernel") -> str:
    parts = [work(n + 1, kernel, 100 + 20 * n, 110 + 20 * n, "aten::cudnn_convolution") for n in range(count)]
    return repeated("".join(parts) + work(count + 1, "volta_s884cudnn_conv", 200, 990) + WAIT)


def tables(count: int, us: float) -> str:
    """Lookups and their dense gradients, one by one."""
    parts, at = [], 200.0
    for n in range(count):
        parts.append(work(n + 1, "gather", at, at + 5, "aten::embedding", f"seq={n}"))
        at += 5
    for n in reversed(range(count)):
        place, link = 100 + 4 * n, 50 + n
        parts.append(f"""
        main | {place} {place + 3} | {NODE} EmbeddingBackward0 | seq={n} fwd=1
        main | {place + 0.5} {place + 2.5} | aten::embedding_dense_backward
        main | {place + 1} {place + 2} | cudaLaunchKernel | corr={link}
        stream 7 | {at} {at + us} | radix_sort | corr={link}
        """)
        at += us
    parts.append("""
    main | 160 163 | aten::embedding_dense_backward
    main | 161 162 | cudaLaunchKernel | corr=99
    stream 7 | 900 901 | radix_sort | corr=99
    main | 180 183 | aten::embedding_dense_backward | cat=annotation
    """)
    return repeated("".join(parts))


COPY = """
    main     | 10 400  | aten::to
    main     | 30 {call} | cudaMemcpyAsync       | corr=1
    stream 7 | 50 {end} | {name} | corr=1 bytes=64000000
    main     | 400 410 | aten::mm
    main     | 402 404 | cudaLaunchKernel      | corr=3
    stream 7 | 410 990 | volta_gemm   | corr=3
    stream 7 | 992 993 | Memcpy HtoD (Pinned -> Device) | corr=4 bytes=1
    main     | 412 413 | cudaMemcpyAsync       | corr=4
"""


def copying(name: str, call: float = 390, end: float = 370) -> str:
    return repeated(COPY.format(name=name, call=call, end=end))


ZEROING = """
    main     | 10 12 | aten::mm
    main     | 10 12 | cudaLaunchKernel | corr=1
    stream 7 | 20 500 | volta_gemm | corr=1
    main     | 100 500 | Optimizer.zero_grad#SGD.zero_grad
    main     | 110 200 | aten::zero_
    main     | 120 190 | aten::fill_
    main     | 121 122 | cudaLaunchKernel | corr=2
    stream 7 | 500 520 | fill | corr=2
    main     | 300 310 | aten::mul
    main     | 510 512 | aten::mm
    main     | 510 512 | cudaLaunchKernel | corr=3
    stream 7 | 900 990 | volta_gemm | corr=3
    main     | 600 610 | aten::zero_
"""
PRODUCT = 'Input_Dims={dims} Input_type=["{kind}","{kind}"]'


def product(
    dims: str,
    kind: str,
    kernel: str,
    us: float = 970,
    operator: str = "aten::mm",
    rest: float = 0,
    grid: str = "",
) -> str:
    """A product of so many us, and a kernel of no product after it."""
    arguments = PRODUCT.format(dims=dims, kind=kind)
    other = work(2, "sort_kernel", 20 + us, 20 + us + rest, "aten::sort") if rest else ""
    return repeated(work(1, kernel, 20, 20 + us, operator, arguments, grid) + other + WAIT)


FP32 = "ampere_sgemm_128x64_nn"
SQUARE = "[[512,512],[512,512]]"
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
ONE_BY_ONE = """
    main     |   10  {first} | aten::linear | Input_Dims=[[{rows},512],[512,512]]
    main     |   12   13 | cudaLaunchKernel | corr=1
    stream 7 |   20  {busy} | gemv_kernel | corr=1
    main     |  900  910 | aten::linear | Input_Dims=[[{rows},512],[512,512]]
    main     |  902  903 | cudaLaunchKernel | corr=2
    stream 7 |  910  1000 | gemv_kernel | corr=2
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


def attention(us: float) -> str:
    products = work(1, "bmm_gemm", 20, 100, "aten::bmm") + work(3, "bmm_gemm", 100 + us, 990, "aten::bmm")
    return products + work(2, "softmax_warp_forward", 100, 100 + us, "aten::softmax") + WAIT


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
LARGE = "[[3072,3072],[3072,3072]]"
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
    stream 7 |    30   400 | a                | corr=1
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
        -> Move this work out of the loop: to another thread, or to every N-th step.
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
        -> Move this work out of the loop: to another thread, or to every N-th step.
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
        -> Move this work out of the training loop: to another thread, loader workers, or to every
        N-th step.
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
        * Memcpy DtoH (Device -> Pinned) × 1, 0.001 ms, other
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
        * Memcpy DtoH (Device -> Pinned) × 1, 0.001 ms, other
        """,
        metadata=JAX,
    ),
    "written-out attention": Case(
        "unfused_attention",
        repeated(attention(300)),
        """
        Attention writes its matrix of scores to memory, 0.3 ms per step.
        That is softmax and the elementwise work around it.
        -> Use F.scaled_dot_product_attention, which does not write the attention matrix to
        memory.
        critical: 0.3 of 1 ms, 0 to 0.899
        simulated, as if the softmax and what is around it took no time
        * softmax_warp_forward × 1, 0.3 ms, forward
        """,
    ),
    "memory of the driver": Case(
        "allocator_churn",
        allocating("cudaMalloc", "cudaFree"),
        """
        Each step allocates or frees driver memory 2 times, 0.3 ms.
        The cache of the allocator is emptied in the loop.
        -> Do not call torch.cuda.empty_cache() in the loop; the next allocations are slow.
        critical: 0.3 of 1 ms, 0 to 0.3
        simulated
        scale:select=name=cudaFree,factor=0 + scale:select=name=cudaMalloc,factor=0
        * cudaMalloc × 1, 0.2 ms, other
        * cudaFree × 1, 0.1 ms, other
        """,
    ),
    "memory of the driver in JAX": Case(
        "allocator_churn",
        allocating("cudaMalloc", "cudaFree"),
        """
        Each step allocates or frees driver memory 2 times, 0.3 ms.
        The cache of the allocator is emptied in the loop.
        -> Let JAX preallocate its memory (unset XLA_PYTHON_CLIENT_PREALLOCATE=false and
        XLA_PYTHON_CLIENT_ALLOCATOR=platform), and donate buffers that a step replaces:
        jax.jit(step, donate_argnums=…).
        critical: 0.3 of 1 ms, 0 to 0.3
        simulated
        scale:select=name=cudaFree,factor=0 + scale:select=name=cudaMalloc,factor=0
        * cudaMalloc × 1, 0.2 ms, other
        * cudaFree × 1, 0.1 ms, other
        """,
        metadata=JAX,
    ),
    "half of it pinned": Case(
        "allocator_churn",
        allocating("cudaHostAlloc", "cudaMalloc", 600),
        """
        Each step allocates or frees driver memory 2 times, 0.4 ms.
        The caching allocator cannot keep enough memory.
        -> Leave memory free (a smaller batch) and do not call torch.cuda.empty_cache() in the
        loop.
        critical: 0.4 of 1 ms, 0 to 0.4
        simulated
        scale:select=name=cudaHostAlloc,factor=0 + scale:select=name=cudaMalloc,factor=0
        * cudaMalloc × 1, 0.2 ms, other
        * cudaHostAlloc × 1, 0.2 ms, other
        """,
    ),
    "more than half of it pinned": Case(
        "allocator_churn",
        allocating("cudaHostAlloc", "cudaMalloc"),
        """
        Each step allocates or frees driver memory 2 times, 0.3 ms.
        It is pinned memory of the host.
        -> Pin buffers once, before the loop, and copy each batch into them.
        critical: 0.3 of 1 ms, 0 to 0.3
        simulated
        scale:select=name=cudaHostAlloc,factor=0 + scale:select=name=cudaMalloc,factor=0
        * cudaHostAlloc × 1, 0.2 ms, other
        * cudaMalloc × 1, 0.1 ms, other
        """,
    ),
    "half of it asked for": Case(
        "allocator_churn",
        allocating("cudaMallocAsync", "cudaMalloc", 600),
        """
        Each step allocates or frees driver memory 2 times, 0.4 ms.
        The caching allocator cannot keep enough memory.
        -> Leave memory free (a smaller batch) and do not call torch.cuda.empty_cache() in the
        loop.
        critical: 0.4 of 1 ms, 0 to 0.4
        simulated
        scale:select=name=cudaMalloc,factor=0 + scale:select=name=cudaMallocAsync,factor=0
        * cudaMalloc × 1, 0.2 ms, other
        * cudaMallocAsync × 1, 0.2 ms, other
        """,
    ),
    "more than half of it asked for": Case(
        "allocator_churn",
        allocating("cudaMallocAsync", "cudaMalloc"),
        """
        Each step allocates or frees driver memory 2 times, 0.3 ms.
        Its allocator asks the driver each time.
        -> Let PyTorch cache memory: leave out backend:cudaMallocAsync in PYTORCH_ALLOC_CONF.
        critical: 0.3 of 1 ms, 0 to 0.3
        simulated
        scale:select=name=cudaMalloc,factor=0 + scale:select=name=cudaMallocAsync,factor=0
        * cudaMallocAsync × 1, 0.2 ms, other
        * cudaMalloc × 1, 0.1 ms, other
        """,
    ),
    "memory that is only mapped": Case(
        "allocator_churn",
        allocating("cuMemMap", "cuMemCreate"),
        """
        Each step allocates or frees driver memory 2 times, 0.3 ms.
        The caching allocator cannot keep enough memory.
        -> Leave memory free (a smaller batch) and do not call torch.cuda.empty_cache() in the
        loop.
        critical: 0.3 of 1 ms, 0 to 0.3
        simulated
        scale:select=name=cuMemCreate,factor=0 + scale:select=name=cuMemMap,factor=0
        * cuMemMap × 1, 0.2 ms, other
        * cuMemCreate × 1, 0.1 ms, other
        """,
    ),
    "memory that runs out": Case(
        "allocator_churn",
        allocating("cudaFree", "cudaMalloc", around="aten::empty"),
        """
        Each step allocates or frees driver memory 2 times, 0.3 ms.
        The allocator ran out of memory, freed its cache and retried.
        -> Leave memory free: a smaller batch, or activation checkpointing.
        critical: 0.3 of 1 ms, 0 to 0.3
        simulated
        scale:select=name=cudaFree,factor=0 + scale:select=name=cudaMalloc,factor=0
        * cudaFree × 1, 0.2 ms, other
        * cudaMalloc × 1, 0.1 ms, other
        """,
    ),
    "mapped memory that runs out": Case(
        "allocator_churn",
        allocating("cudaFree", "cuMemMap", around="aten::empty"),
        """
        Each step allocates or frees driver memory 2 times, 0.3 ms.
        The allocator ran out of memory, freed its cache and retried.
        -> Leave memory free: a smaller batch, or activation checkpointing.
        critical: 0.3 of 1 ms, 0 to 0.3
        simulated
        scale:select=name=cuMemMap,factor=0 + scale:select=name=cudaFree,factor=0
        * cudaFree × 1, 0.2 ms, other
        * cuMemMap × 1, 0.1 ms, other
        """,
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
        critical: 0.8115 of 4 ms, 0.6361325 to 0.9868675
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
    "a softmax": Case(
        "hotspot",
        repeated(SOFTMAX),
        """
        cunn_SoftMaxForward takes 30% of the step.
        It runs once per step.
        -> In attention use F.scaled_dot_product_attention, which does not write the softmax to
        memory; in a loss use F.cross_entropy.
        warning: 0.15 of 1 ms, 0 to 0.3
        simulated, if it took half as long
        scale:select=name=cunn_SoftMaxForward,factor=0.5
        * cunn_SoftMaxForward × 1, 0.3 ms, forward
        """,
    ),
    "a softmax in JAX": Case(
        "hotspot",
        repeated(SOFTMAX),
        """
        cunn_SoftMaxForward takes 30% of the step.
        It runs once per step.
        -> In attention use jax.nn.dot_product_attention, which need not write the softmax to
        memory; in a loss use optax.softmax_cross_entropy_with_integer_labels.
        warning: 0.15 of 1 ms, 0 to 0.3
        simulated, if it took half as long
        scale:select=name=cunn_SoftMaxForward,factor=0.5
        * cunn_SoftMaxForward × 1, 0.3 ms, forward
        """,
        metadata=JAX,
    ),
    "four hot kernels": Case(
        "hotspot",
        repeated(
            "".join(
                work(n + 1, f"{name}_kernel", begin, end, "aten::own")
                for n, (name, begin, end) in enumerate(
                    zip("abcd", (10, 210, 430, 720), (210, 430, 720, 990), strict=True)
                )
            )
            + WAIT
        ),
        """
        c_kernel takes 29% of the step.
        It runs once per step.
        -> Check whether it is needed, whether it processes more than necessary, and whether a
        faster equivalent exists.
        warning: 0.145 of 1 ms, 0 to 0.29
        simulated, if it took half as long
        scale:select=name=c_kernel,factor=0.5
        * c_kernel × 1, 0.29 ms, forward
        d_kernel takes 27% of the step.
        It runs once per step.
        -> Check whether it is needed, whether it processes more than necessary, and whether a
        faster equivalent exists.
        warning: 0.135 of 1 ms, 0 to 0.27
        simulated, if it took half as long
        scale:select=name=d_kernel,factor=0.5
        * d_kernel × 1, 0.27 ms, forward
        b_kernel takes 22% of the step.
        It runs once per step.
        -> Check whether it is needed, whether it processes more than necessary, and whether a
        faster equivalent exists.
        warning: 0.11 of 1 ms, 0 to 0.22
        simulated, if it took half as long
        scale:select=name=b_kernel,factor=0.5
        * b_kernel × 1, 0.22 ms, forward
        """,
    ),
    "idle beside a call": Case(
        "idle_device",
        repeated(IDLE.format(begin=30_000, end=90_000), 100_000),
        """
        The device idles 99% of the step before the CPU launches more.
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
        The device idles 99% of the step before the CPU launches more.
        That is 98.7 ms per step.
        Nothing recorded explains it: no call or range takes half of this time by itself.
        -> Find out what the CPU does there.
        warning: 98.71 of 100 ms, 0 to 98.71
        at most this idle time
        * cudaGetDeviceProperties_v2 × 1, 0.05 ms, other
        """,
    ),
    "indexing": Case(
        "index_backward",
        indexing(300),
        """
        The backward pass of indexing (tensor[indices]) takes 0.3 ms per step.
        -> To index one dimension use torch.index_select or, for rows, F.embedding.
        info: 0.02 of 1 ms, 0 to 0.02
        simulated, at most: with a backward that takes no time
        scale:select=operator=IndexBackward0,factor=0
        * indexing_backward_kernel × 1, 0.3 ms, backward
        """,
    ),
    "a chain of small kernels": Case(
        "kernel_fusion",
        chain(20, 9),
        """
        20 small elementwise kernels per step, 9 µs each.
        They run in 1 chains.
        -> Fuse them: apply torch.compile to the model or to this function.
        warning: 0.171 of 1 ms, 0 to 0.171594059
        what-if kernel_fusion
        kernel_fusion
        * vectorized_elementwise_kernel × 20, 0.18 ms, forward
        """,
    ),
    "a chain of small kernels in JAX": Case(
        "kernel_fusion",
        chain(20, 9),
        """
        20 small elementwise kernels per step, 9 µs each.
        They run in 1 chains.
        -> XLA fuses within one program: put the whole step under one jax.jit.
        warning: 0.171 of 1 ms, 0 to 0.171594059
        what-if kernel_fusion
        kernel_fusion
        * vectorized_elementwise_kernel × 20, 0.18 ms, forward
        """,
        metadata=JAX,
    ),
    "a chain of long kernels": Case(
        "kernel_fusion",
        chain(3, 40),
        """
        Chains of elementwise kernels take 0.12 ms per step (12%).
        Each of 3 kernels reads and writes its whole tensor.
        -> Fuse them: apply torch.compile to the model or to this function.
        warning: 0.08 of 1 ms, 0 to 0.0802779222
        what-if kernel_fusion
        kernel_fusion
        * vectorized_elementwise_kernel × 3, 0.12 ms, forward
        """,
    ),
    "layouts": Case(
        "layout_conversions",
        layouts(4),
        """
        Each step converts layouts around convolutions 4 times, 0.04 ms.
        -> Keep one layout throughout: model.to(memory_format=torch.channels_last), the same for
        the input, and layers that preserve it.
        info: 0.04 of 1 ms, 0.0208 to 0.0592
        simulated
        scale:select=name=cudnn::ops::nchwToNhwcKernel,factor=0
        * cudnn::ops::nchwToNhwcKernel × 4, 0.04 ms, forward
        """,
    ),
    "layouts in JAX": Case(
        "layout_conversions",
        layouts(4),
        """
        Each step converts layouts around convolutions 4 times, 0.04 ms.
        -> Keep one layout throughout: NHWC for images and in dimension_numbers of convolutions,
        without jnp.transpose between layers.
        info: 0.04 of 1 ms, 0.0208 to 0.0592
        simulated
        scale:select=name=cudnn::ops::nchwToNhwcKernel,factor=0
        * cudnn::ops::nchwToNhwcKernel × 4, 0.04 ms, forward
        """,
        metadata=JAX,
    ),
    "a slow product": Case(
        "low_utilization",
        product(SQUARE, "c10::Half", "ampere_s16816gemm"),
        """
        ampere_s16816gemm reaches 0% of the roofline, 0.97 ms per step.
        Its shape or layout suits no fast kernel.
        -> Use dimensions that are multiples of 64 and contiguous inputs; keep one layout
        (channels_last for convolutions).
        critical: 0.89 of 1 ms, 0 to 0.89
        simulated, if it reached 60% of the roofline
        * ampere_s16816gemm × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "a slow large product": Case(
        "low_utilization",
        product(LARGE, "c10::Half", "ampere_s16816gemm"),
        """
        ampere_s16816gemm reaches 19% of the roofline, 0.97 ms per step.
        Its shape or layout suits no fast kernel.
        -> Use dimensions that are multiples of 64 and contiguous inputs; keep one layout
        (channels_last for convolutions).
        critical: 0.660267 of 1 ms, 0 to 0.660267
        simulated, if it reached 60% of the roofline
        * ampere_s16816gemm × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "a product of few blocks": Case(
        "low_utilization",
        product(LARGE, "c10::Half", "ampere_s16816gemm", grid="grid=[2,27,1]"),
        """
        ampere_s16816gemm reaches 19% of the roofline, 0.97 ms per step.
        Its 54 thread blocks leave most of the 108 multiprocessors idle.
        -> Use a larger batch, or combine several small products into one (torch.bmm, a wider
        layer).
        critical: 0.660267 of 1 ms, 0 to 0.660267
        simulated, if it reached 60% of the roofline
        * ampere_s16816gemm × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "a product that moves bytes": Case(
        "low_utilization",
        product("[[1,4096],[4096,4096]]", "c10::Half", "ampere_gemv"),
        """
        ampere_gemv reaches 2% of the roofline, 0.97 ms per step.
        It moves more bytes than its arithmetic can hide.
        -> Use a larger batch or wider layers, so that weights are read for more rows at a time.
        critical: 0.89 of 1 ms, 0 to 0.89
        simulated, if it reached 60% of the roofline
        * ampere_gemv × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "odd sizes of a large product": Case(
        "odd_shapes",
        product("[[3072,3001],[3001,3072]]", "c10::Half", "ampere_s16816gemm"),
        """
        1 16-bit matrix products per step have sizes not divisible by 8.
        The sizes are 3001; the products take 0.97 ms.
        -> Pad these dimensions (vocabulary, hidden size, batch) to a multiple of 8, better of 64.
        critical: 0.60691 of 1 ms, 0 to 0.60691
        simulated, if they ran at the rate that suitable sizes reach
        * ampere_s16816gemm × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
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
        warning: 98.64 of 100 ms, 0 to 98.64
        at most this idle time
        * cudaLaunchKernel × 3, 0.014 ms, other
        """,
    ),
    "tables": Case(
        "many_embeddings",
        tables(8, 10),
        """
        9 embedding tables per step are looked up one by one.
        Their dense gradients take 9 kernels, 0.081 ms.
        -> Keep tables of equal width in one nn.EmbeddingBag, or use a library that does
        (fbgemm_gpu, torchrec).
        info: 0.045323 of 1 ms, 0 to 0.045323
        simulated, at most: one lookup in place of all of them
        * aten::embedding × 8, 0.024 ms, forward
        * autograd::engine::evaluate_function: EmbeddingBackward0 × 8, 0.024 ms, backward
        * aten::embedding_dense_backward × 1, 0.003 ms, backward
        """,
    ),
    "odd sizes": Case(
        "odd_shapes",
        product("[[512,17],[17,50257]]", "c10::Half", "ampere_s16816gemm"),
        """
        1 16-bit matrix products per step have sizes not divisible by 8.
        The sizes are 17, 50257; the products take 0.97 ms.
        -> Pad these dimensions (vocabulary, hidden size, batch) to a multiple of 8, better of 64.
        critical: 0.89 of 1 ms, 0 to 0.89
        simulated, if they ran at the rate that suitable sizes reach
        * ampere_s16816gemm × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "odd sizes on an unknown device": Case(
        "odd_shapes",
        product("[[512,17],[17,50257]]", "c10::Half", "ampere_gemm_align1"),
        """
        1 16-bit matrix products per step have sizes not divisible by 8.
        The sizes are 17, 50257; the products take 0.97 ms.
        -> Pad these dimensions (vocabulary, hidden size, batch) to a multiple of 8, better of 64.
        critical: 0.485 of 1 ms, 0 to 0.485
        simulated, if they ran at the rate that suitable sizes reach
        * ampere_gemm_align1 × 1, 0.97 ms, forward
        """,
    ),
    "a pageable copy": Case(
        "pageable_copies",
        copying("Memcpy HtoD (Pageable -> Device)"),
        """
        Copies from pageable memory block the CPU, 1 per step (64 MB).
        -> Keep inputs in pinned memory (tensor.pin_memory()) and copy them asynchronously:
        tensor.to(device, non_blocking=True).
        critical: 0.32 of 1 ms, 0 to 0.32
        simulated, at most: with copies that overlap computation
        scale:select=name=Memcpy HtoD (Pageable -> Device),factor=0
        * Memcpy HtoD (Pageable -> Device) × 1, 0.32 ms, transfer
        """,
    ),
    "a copy within its call": Case(
        "pageable_copies",
        copying("CopyHostToDevice"),
        """
        Copies from pageable memory block the CPU, 1 per step (64 MB).
        -> Keep inputs in pinned memory (tensor.pin_memory()) and copy them asynchronously:
        tensor.to(device, non_blocking=True).
        info: 0.04 of 1 ms, 0 to 0.04
        at most the idle time of the device during these calls
        * CopyHostToDevice × 1, 0.32 ms, transfer
        """,
    ),
    "a copy after its call": Case("pageable_copies", copying("CopyHostToDevice", 60)),
    "products in FP32": Case(
        "fp32_matmul",
        product(SQUARE, "float", FP32),
        """
        1 kernels per step (0.97 ms) compute in FP32, without tensor cores.
        They are matrix products or convolutions on a device that has tensor cores.
        -> Use torch.set_float32_matmul_precision('high') for TF32, or torch.autocast with
        bfloat16.
        critical: 0.646667 of 1 ms, 0.41805 to 0.9043
        what-if amp
        amp
        * ampere_sgemm_128x64_nn × 1, 0.97 ms, forward
        """,
        metadata=DEVICE,
    ),
    "products in FP32 of JAX": Case(
        "fp32_matmul",
        product(SQUARE, "float", FP32),
        """
        1 kernels per step (0.97 ms) compute in FP32, without tensor cores.
        They are matrix products or convolutions on a device that has tensor cores.
        -> Use jax.config.update('jax_default_matmul_precision', 'tensorfloat32'), or compute in
        jnp.bfloat16.
        critical: 0.646667 of 1 ms, 0.41805 to 0.9043
        what-if amp
        amp
        * ampere_sgemm_128x64_nn × 1, 0.97 ms, forward
        """,
        metadata=JAX,
    ),
    "products in FP32 and no operators": Case(
        "fp32_matmul",
        repeated(f"main | 10 12 | cudaLaunchKernel | corr=1\nstream 7 | 20 990 | {FP32} | corr=1"),
        metadata=DEVICE,
    ),
    "products in FP64": Case(
        "fp64_matmul",
        product(SQUARE, "double", "some_gemm_kernel", 600, rest=370),
        """
        Matrix products and convolutions compute in FP64, 0.6 ms per step.
        -> If the accuracy of FP32 is enough, convert the model and its inputs with .float().
        critical: 0.3 of 1 ms, 0.3 to 0.596
        simulated, if FP32 took half as long
        * some_gemm_kernel × 1, 0.6 ms, forward
        """,
        metadata=DEVICE,
    ),
    "products in FP64 by name": Case(
        "fp64_matmul",
        product(SQUARE, "", "ampere_dgemm", 600, rest=370),
        """
        Matrix products and convolutions compute in FP64, 0.6 ms per step.
        -> If the accuracy of FP32 is enough, leave jax_enable_x64 off, or convert parameters and
        inputs with .astype(jnp.float32).
        critical: 0.3 of 1 ms, 0.3 to 0.596
        simulated, if FP32 took half as long
        * ampere_dgemm × 1, 0.6 ms, forward
        """,
        metadata=JAX,
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
    "a small batch": Case(
        "small_batch",
        repeated(ONE_BY_ONE.format(first=100, rows=8, busy=100)),
        """
        Batches have 8 rows; 83% of the step is fixed overhead.
        It does not grow with the batch.
        -> Use larger batches, or pack several samples into one.
        critical: 0.83 of 1 ms, 0.415 to 1
        per sample: the overhead is shared by more samples
        * aten::linear × 2, 0.1 ms, forward
        """,
    ),
    "zeros": Case(
        "zero_grad_memset",
        repeated(ZEROING),
        """
        Each step fills gradients with zeros.
        -> Release gradients instead: optimizer.zero_grad(set_to_none=True), the default since
        PyTorch 2.0.
        info: 0.04 of 1 ms, 0 to 0.04
        simulated, if gradients were neither zeroed nor added to
        * aten::zero_ × 1, 0.09 ms, zero_grad
        """,
    ),
}
LIMITS = {
    "stalls of 5 % of the step": Limit(
        "python_stall", repeated(IDLE_OF.format(end=1600), 30_000), repeated(IDLE_OF.format(end=1599), 30_000)
    ),
    "attention of 5 % of the step": Limit(
        "unfused_attention", repeated(attention(50)), repeated(attention(49.9))
    ),
    "driver memory in half of the steps": Limit(
        "allocator_churn",
        allocating("cudaMalloc", "cudaFree", doing=2, times=4),
        allocating("cudaMalloc", "cudaFree", doing=1, times=4),
    ),
    "driver memory in two steps": Limit(
        "allocator_churn",
        allocating("cudaMalloc", "cudaFree", doing=1, times=2),
        allocating("cudaMalloc", "cudaFree", doing=1, times=1),
    ),
    "a kernel of 15 % of the step": Limit("hotspot", hot(150), hot(149.9)),
    "indexing in 2 % of the step": Limit("index_backward", indexing(20), indexing(19.9)),
    "20 small kernels": Limit("kernel_fusion", chain(20, 9), chain(19, 9)),
    "small kernels below 10 us": Limit("kernel_fusion", chain(20, 9.999, 2), chain(5, 10)),
    "chains of 3": Limit("kernel_fusion", chain(3, 60), chain(2, 90)),
    "chains of 10 % of the step": Limit("kernel_fusion", chain(4, 25), chain(4, 24.99)),
    "4 conversions": Limit("layout_conversions", layouts(4), layouts(3)),
    "8 tables": Limit("many_embeddings", tables(7, 10), tables(6, 10)),
    "kernels of 10 us": Limit("many_embeddings", tables(9, 10.9), tables(9, 11.001)),
    "FP32 of 5 % of the step": Limit(
        "fp32_matmul",
        product(SQUARE, "float", FP32, 50, rest=920),
        product(SQUARE, "float", FP32, 49.9, rest=920),
        DEVICE,
    ),
    "FP64 of 5 % of the step": Limit(
        "fp64_matmul",
        product(SQUARE, "double", "gemm", 50, rest=920),
        product(SQUARE, "double", "gemm", 49.9, rest=920),
        DEVICE,
    ),
    "sizes of 16": Limit(
        "odd_shapes",
        product("[[512,17],[17,512]]", "c10::BFloat16", "ampere_gemm_align1"),
        product("[[512,15],[15,512]]", "c10::BFloat16", "ampere_gemm_align1"),
    ),
    "8 rows": Limit(
        "small_batch",
        repeated(ONE_BY_ONE.format(first=100, rows=8, busy=100)),
        repeated(ONE_BY_ONE.format(first=100, rows=9, busy=100)),
    ),
    "idle for 30 % of the step": Limit(
        "small_batch",
        repeated(ONE_BY_ONE.format(first=100, rows=8, busy=630)),
        repeated(ONE_BY_ONE.format(first=100, rows=8, busy=631)),
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
