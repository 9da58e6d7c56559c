"""Names of communication: kernels, calls and host-side work of the libraries in use.

To support another library, add a row to `KERNELS`, and to `CALLS` if its operators have names of
their own. Patterns match names in lower case.
"""

from __future__ import annotations

import re
from functools import lru_cache

# (library, pattern of kernel names)
KERNELS = (
    ("NCCL, RCCL, oneCCL, HCCL", r"nccl|rccl|oneccl|\bccl::|hccl|\bhcom_|xccl"),
    ("MSCCL, MSCCL++", r"msccl"),
    ("NVSHMEM, ROC_SHMEM, Intel SHMEM", r"nvshmem|roc_?shmem|ishmem"),
    ("DeepEP, UCCL-EP, Mooncake EP", r"deep_?ep\b|deep_?ep::|mooncake"
     r"|\b(inter|intra)node(_ll)?::|\binternode_|\bintranode_"),
    ("PPLX and MoE all-to-all kernels", r"\bpplx|moe_?(comm|a2a)|\ba2a_"),
    ("vLLM, SGLang, AITER custom all-reduce", r"cross_device_(reduce|store|load)|quick_?reduce"),
    ("TensorRT-LLM, FlashInfer", r"lamport|(one|two)_?shot_?(all_?reduce|car)|allreduce_fusion"),
    ("Transformer Engine user buffers", r"user_?buffers"),
    ("PyTorch symmetric memory", r"multimem|symm_?mem|symmetric_memory|(put|wait)_signal_kernel"),
    ("UCX, UCC", r"\buc[cx]_|\bucp_"),
    ("XLA collectives", r"collective-(permute|broadcast)"),
    ("XLA transfers between slices (Megascale)", r"^(send|recv)(-done)?(\.\d+)*$"),
    ("any", r"all[-_]?reduce|reduce[-_]?scatter|all[-_]?gather|all[-_]?to[-_]?all(v|_|\b)|alltoall"
     r"|sendrecv"),
)  # fmt: skip
# Operators and ranges whose kernels communicate.
CALLS = (
    ("c10d", r"^(nccl|rccl|hccl|xccl|gloo|mpi|ucc):|^_?c10d(_functional)?::|^record_param_comms"),
    ("symmetric memory", r"^symm_mem::"),
    ("vLLM, SGLang", r"^(vllm|sglang|sgl_kernel|_c_custom_ar|_c_custom_all_?reduce)::\w*"
     r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)"),
    ("TensorRT-LLM", r"^trtllm::\w*(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
     r"|moe_?comm)"),
    ("DeepEP", r"^(deep_?ep|uccl_?ep)(::|\b)"),
    ("oneCCL", r"^(torch_ccl|oneccl_bindings_for_pytorch)"),
)  # fmt: skip
# Work of host threads that is itself communication.
HOST_WORK = (
    ("Gloo, MPI, UCC through torch.distributed", r"^(gloo|mpi|ucc):"),
    ("MPI", r"^mpi_(i?all\w+|i?reduce\w*|i?bcast|i?gatherv?|i?scatterv?|i?send\w*|i?recv\w*"
     r"|sendrecv\w*|barrier|wait\w*)$"),
    ("UCX", r"^uc[pt]_\w*(send|recv|put|get|progress|flush)"),
)  # fmt: skip
# Operators that wait for work of the process group: DTensor, tensor parallelism, compiled FSDP.
_WAIT = re.compile(r"^_?c10d_functional::wait_tensor$|^c10d::(barrier|monitored_barrier_)$")
# In a range of this name, a kernel of this name communicates; elsewhere it may compute.
EXCHANGE = re.compile(r"\b(dispatch|combine)|_(dispatch|combine)(_|\b)")
STREAM = re.compile(r"nccl|rccl|\bcomm(s|unication)?\b|collective|process ?group")
GROUP_ARGUMENTS = re.compile(rb'"(Collective name|Process Group (Name|Ranks|Description))"\s*:')


def _any_of(table: tuple[tuple[str, str], ...]) -> re.Pattern[str]:
    return re.compile("|".join(pattern for _, pattern in table))


_KERNEL, _CALL, _HOST = map(_any_of, (KERNELS, CALLS, HOST_WORK))


@lru_cache(maxsize=1 << 14)
def is_communication_kernel(name: str) -> bool:
    """Whether the name alone shows that a kernel communicates.

    Example:
        >>> is_communication_kernel("void deep_ep::internode::dispatch<false, 4>(int4*)")
        True
        >>> is_communication_kernel("flash_fwd_splitkv_combine_kernel")
        False
    """
    return _KERNEL.search(name.lower()) is not None


def is_communication_call(name: str) -> bool:
    """Whether the kernels that an operator or a range of this name launches communicate."""
    return _CALL.search(name.lower()) is not None


def is_communication_wait(name: str) -> bool:
    """Whether an operator of this name waits on the CPU until a collective ends."""
    return _WAIT.match(name) is not None


def is_host_communication(name: str) -> bool:
    """Whether an event of this name on a host thread is communication itself."""
    return _HOST.search(name.lower()) is not None


def is_exchange(name: str) -> bool:
    """Whether a name is that of a dispatch or a combine of experts, or of something else."""
    return EXCHANGE.search(name.lower()) is not None
