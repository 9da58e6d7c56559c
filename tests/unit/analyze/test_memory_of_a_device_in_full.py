"""Findings in full on the memory of a device: allocations, copies, zeros and attention."""

from __future__ import annotations

from drawn_findings import JAX, NODE, WAIT, Case, Limit, from_limit_on, in_full, repeated, work

BUSY = work(1, "volta_gemm", 10, 600)


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
    main     | 414 415 | Memcpy HtoD (Pageable -> Device) | cat=cpu_op
    main     | 991 999 | cudaMemcpyAsync       | corr=5
    stream 7 | 994 996 | Memcpy DtoH (Device -> Pageable) | corr=5 bytes=8
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


def attention(us: float) -> str:
    products = work(1, "bmm_gemm", 20, 100, "aten::bmm") + work(3, "bmm_gemm", 100 + us, 990, "aten::bmm")
    return products + work(2, "softmax_warp_forward", 100, 100 + us, "aten::softmax") + WAIT


CASES = {
    "written-out attention": Case(
        "unfused_attention",
        repeated(attention(300)),
        """
        Attention writes its matrix of scores to memory, 0.3 ms per step.
        That is softmax and the elementwise work around it.
        -> Use F.scaled_dot_product_attention, which does not write the attention matrix to
        memory.
        critical: 0.3 of 1 ms, 0 to 0.899
        simulated, without the softmax and all around it; at most the products too
        * softmax_warp_forward × 1, 0.3 ms, forward
        """,
    ),
    "memory of the driver": Case(
        "allocator_churn",
        allocating("cudaMalloc", "cudaFree"),
        """
        Each step allocates or frees driver memory 2 times, 0.3 ms.
        The cache of the allocator is emptied in the loop, or other code allocates by itself.
        -> Do not call torch.cuda.empty_cache() in the loop.
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
        The cache of the allocator is emptied in the loop, or other code allocates by itself.
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
    "a pageable copy": Case(
        "pageable_copies",
        copying("Memcpy HtoD (Pageable -> Device)"),
        """
        Copies from pageable memory block the CPU, 1 per step (64 MB).
        -> Keep inputs in pinned memory (tensor.pin_memory()) and copy them asynchronously:
        tensor.to(device, non_blocking=True).
        critical: 0.321 of 1 ms, 0 to 0.321
        simulated, at most: with copies that overlap computation
        scale:select=name=Memcpy HtoD (Pageable -> Device),factor=0
        * Memcpy HtoD (Pageable -> Device) × 1, 0.32 ms, transfer
        """,
    ),
    "a pageable copy after its call": Case(
        "pageable_copies",
        copying("Memcpy HtoD (Pageable -> Device)", 60),
        """
        Copies from pageable memory block the CPU, 1 per step (64 MB).
        -> Keep inputs in pinned memory (tensor.pin_memory()) and copy them asynchronously:
        tensor.to(device, non_blocking=True).
        info: 0.02 of 1 ms, 0 to 0.02
        at most the idle time of the device during these calls
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
    "indexing in 2 % of the step": Limit("index_backward", indexing(20), indexing(19.9)),
    "8 tables": Limit("many_embeddings", tables(7, 10), tables(6, 10)),
    "kernels of 10 us": Limit("many_embeddings", tables(9, 10.9), tables(9, 11.001)),
}


test_a_finding_in_full = in_full(CASES)
test_a_rule_finds_from_its_limit_on = from_limit_on(LIMITS)
