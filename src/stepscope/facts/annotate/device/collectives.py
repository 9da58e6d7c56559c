"""Communication between processes, by name or by the call that launched it.

To support another library, add a row to `KERNELS`, and to `CALLS` if its operators have names of
their own. Patterns match names in lower case.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import numpy as np

from stepscope.base.arrays import Floats, Ids, Mask
from stepscope.facts.annotate.device.kernel_kinds import GENERATED, kind_of
from stepscope.facts.annotate.links.launches import launch_of, on_host
from stepscope.trace.arguments import element_bytes
from stepscope.trace.nesting import inherit, innermost
from stepscope.trace.schema import CATEGORIES, TRACK_KINDS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace

# What HCCL puts into streams; copies next to such tasks are between devices too.
_HCCL = (
    r"^notify_(wait|record)(_sqe)?$|^reduce_(async(_v\d)?|inline)(_sqe)?$|^rdma_?send(_sqe)?$"
    r"|^(s|r)dma_(sqe|reduce\w*)$|^p2p_\w+$"
)
# (library, pattern of kernel names)
KERNELS = (
    ("NCCL, RCCL, oneCCL, HCCL", r"nccl|rccl|oneccl|\bccl::|hccl|\bhcom_|xccl"),
    # BKCL (Kunlun), CNCL (Cambricon), ECCL (Enflame), IXCCL (Iluvatar), MCCL (MetaX, Moore Threads).
    ("other vendors", r"(?<![a-z])(e|ix|m|su|t)ccl(?![a-z])|bkcl|cncl|flagcx"),
    ("tasks of HCCL on Ascend", _HCCL),
    ("MSCCL, MSCCL++", r"msccl"),
    ("NVSHMEM, ROC_SHMEM, Intel SHMEM", r"nvshmem|roc_?shmem|ishmem"),
    (
        "DeepEP, UCCL-EP, Mooncake EP, MORI",
        r"deep_?ep\b|deep_?ep::|mooncake|hybrid_ep::(dispatch|combine|device_sync)"
        r"|(?<![a-z])ep(dispatch|combine)|\b(inter|intra)node(::|_)",
    ),
    ("PPLX and MoE all-to-all kernels", r"\bpplx|moe_?(comm|a2a)|\ba2a_"),
    ("vLLM, SGLang, AITER custom all-reduce", r"cross_device_(reduce|store|load)|quick_?reduce"),
    ("TensorRT-LLM, FlashInfer", r"lamport|(one|two)_?shot_?(all_?reduce|car)|allreduce_fusion"),
    ("Transformer Engine user buffers", r"user_?buffers"),
    ("PyTorch symmetric memory", r"multimem|symm_?mem|symmetric_memory|(put|wait)_signal_kernel"),
    ("UCX, UCC", r"\buc[cx]_|\bucp_"),
    ("XLA collectives", r"collective-(permute|broadcast|start|done)"),
    ("XLA transfers between slices (Megascale)", r"^(send|recv)(-done)?(\.\d+)*$"),
    (
        "any",
        r"(?<!sm)all[-_]?(reduce|gather)|reduce[-_]?scatter|all[-_]?to[-_]?all(v|_|\b)|alltoall"
        r"|sendrecv",
    ),
)
# Operators and ranges whose kernels communicate.
CALLS = (
    ("c10d", r"^(nccl|rccl|hccl|xccl|gloo|mpi|ucc):|^_?c10d(_functional)?::|^record_param_comms"),
    ("symmetric memory", r"^symm_mem::"),
    (
        "vLLM, SGLang",
        r"^(vllm|sglang|sgl_kernel|_c_custom_ar|_c_custom_all_?reduce)::\w*"
        r"(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all)",
    ),
    (
        "TensorRT-LLM",
        r"^trtllm::\w*(all_?reduce|all_?gather|reduce_?scatter|all_?to_?all"
        r"|moe_?comm)",
    ),
    ("DeepEP", r"^(deep_?ep|uccl_?ep)(::|\b)"),
    ("oneCCL", r"^(torch_ccl|oneccl_bindings_for_pytorch)"),
)
# Work of host threads that is itself communication.
HOST_WORK = (
    ("Gloo, MPI, UCC through torch.distributed", r"^(gloo|mpi|ucc):"),
    (
        "MPI",
        r"^mpi_(i?all\w+|i?reduce\w*|i?bcast|i?gatherv?|i?scatterv?|i?send\w*|i?recv\w*"
        r"|sendrecv\w*|barrier|wait\w*)$",
    ),
    ("UCX", r"^uc[pt]_\w*(send|recv|put|get|progress|flush)"),
)
# Operators that wait for work of the process group: DTensor, tensor parallelism, compiled FSDP.
_WAIT = re.compile(r"^_?c10d_functional::wait_tensor$|^c10d::(barrier|monitored_barrier_)$")
# In a range of this name, a kernel of this name communicates; elsewhere it may compute.
EXCHANGE = re.compile(r"\b(dispatch|combine)|_(dispatch|combine)(_|\b)")
STREAM = re.compile(r"nccl|rccl|\bcomm(s|unication)?\b|collective|process ?group")
GROUP_ARGUMENTS = re.compile(rb'"(Collective name|Process Group (Name|Ranks|Description))"\s*:')
_TASK = re.compile(_HCCL)
_KERNEL, _CALL, _HOST = (
    re.compile("|".join(pattern for _, pattern in table)) for table in (KERNELS, CALLS, HOST_WORK)
)


@lru_cache(maxsize=1 << 14)
def is_communication_kernel(name: str) -> bool:
    """Whether the name alone shows that a kernel communicates.

    Example:
        >>> is_communication_kernel("void deep_ep::internode::dispatch<false, 4>(int4*)")
        True
        >>> is_communication_kernel("flash_fwd_splitkv_combine_kernel")
        False
    """
    return not GENERATED.match(name) and _KERNEL.search(name.lower()) is not None


def is_communication_call(name: str) -> bool:
    """Whether the kernels that an operator or a range of this name launches communicate."""
    return _CALL.search(name.lower()) is not None


def is_communication_wait(name: str) -> bool:
    """Whether an operator of this name waits on the CPU until a collective ends."""
    return _WAIT.match(name) is not None


_KIND = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|send_?recv|broadcast"
    r"|reduce|gather|scatter|barrier",
    re.IGNORECASE,
)
_MOST_ELEMENTS = 1 << 48  # more fit no memory, and times their width no integer of 64 bits
_GROUP = ("Process Group Name", "Process Group Ranks", "Group size")


def mark_communication(trace: Trace) -> Trace:
    """Set the category `communication` for kernels and host-side collectives that communicate.

    A kernel communicates if its name matches a library (`KERNELS`), if events of its name have process-group
    arguments, if the innermost operator around its launch is a collective, if it exchanges experts in a range
    that says so, or if it has no known kind and runs on a stream named for communication. A stream or thread
    that mostly communicates becomes a communication track. Bytes come from the recorded element counts.
    """
    events = trace.events
    category, name = events.text("category"), events.text("name")
    kernel = category.mask("kernel")
    communicates = name.where(is_communication_kernel) | _with_group_arguments(trace, kernel)
    operator = category.mask("cpu_op", "annotation")
    communicates |= _launched_in(trace, operator, name.where(is_communication_call))
    exchanges = name.where(lambda text: EXCHANGE.search(text.lower()) is not None)
    communicates |= exchanges & _launched_in(trace, category.mask("annotation"), exchanges)
    communicates |= _on_named_stream(trace)
    communicates &= kernel
    communicates |= category.mask("memcpy") & _on_stream_of_tasks(trace)
    communicates_itself = name.where(lambda text: _HOST.search(text.lower()) is not None)
    communicates |= on_host(trace) & category.mask("annotation", "cpu_op") & communicates_itself
    code = np.where(communicates, CATEGORIES.index("communication"), category.codes)
    trace = trace.with_events(
        category=Text(code.astype(np.int8), CATEGORIES), bytes=_bytes(trace, communicates)
    )
    return trace.with_table(_tracks(trace, communicates))


def _with_group_arguments(trace: Trace, kernel: Mask) -> Mask:
    """Kernels with the name of one that has a collective or a process group as argument."""
    rows = np.flatnonzero(kernel & (trace.events["source"] >= 0))
    names, first = np.unique(trace.events["name"][rows], return_index=True)
    texts = trace.arguments.texts(trace.events["source"][rows[first]])
    marked = np.array([bool(GROUP_ARGUMENTS.search(text)) for text in texts], np.bool_)
    return np.isin(trace.events["name"], names[marked])


def _launched_in(trace: Trace, marks: Mask, wanted: Mask) -> Mask:
    """Device work whose launch has a wanted event as the innermost of the marks around it."""
    around = inherit(trace.events["parent"], np.where(marks, wanted, -1))
    caller = launch_of(trace)
    return (caller >= 0) & (around[caller] == 1)


def _on_named_stream(trace: Trace) -> Mask:
    """Device work of no known kind on a stream that is named for communication."""
    events = trace.events
    tracks = trace["tracks"].text("name").where(lambda name: bool(STREAM.search(name.lower())))
    if not tracks.any():
        return np.zeros(len(events), np.bool_)
    return tracks[events["track"]] & events.text("name").where(lambda n: kind_of(n) == "other")


def _on_stream_of_tasks(trace: Trace) -> Mask:
    """Events on streams in which HCCL's tasks take most of the time, apart from copies."""
    events = trace.events
    kernel = events.text("category").mask("kernel")
    task = kernel & events.text("name").where(lambda name: bool(_TASK.search(name.lower())))
    spent, among = time_by_track(trace, task), time_by_track(trace, kernel)
    return ((spent > 0) & (2 * spent > among))[events["track"]]


def time_by_track(trace: Trace, rows: Mask) -> Floats:
    """The time of some events on each track, ns, shape (tracks,)."""
    events = trace.events
    spent = np.bincount(events["track"][rows], events["duration_ns"][rows], len(trace["tracks"]))
    return spent.astype(np.float64)


def _tracks(trace: Trace, communicates: Mask) -> Table:
    """Set the kind of tracks that communicate for most of their busy time."""
    events, tracks = trace.events, trace["tracks"]
    top = events["parent"] < 0
    work = communicates & (top | (events["category"] == CATEGORIES.index("communication")))
    time, communication_ns = time_by_track(trace, top), time_by_track(trace, work)
    kind = np.where((communication_ns > 0) & (2 * communication_ns > time), 2, tracks["kind"])
    return tracks.with_columns(kind=Text(kind.astype(np.int8), TRACK_KINDS))


def _bytes(trace: Trace, communicates: Mask) -> Ids:
    events = trace.events
    caller = launch_of(trace)
    call = innermost(events["parent"], events.text("name").mask("record_param_comms"))
    result = events["bytes"].copy()
    for event in np.flatnonzero(communicates & (result < 0)).tolist():
        origin = call[caller[event]] if caller[event] >= 0 else -1
        for source in (event, origin):
            if source >= 0 and (size := _size(trace, source)) >= 0:
                result[event] = size
                break
    return result


def _size(trace: Trace, event: int) -> int:
    """Bytes of a collective from its recorded element counts and type, or -1."""
    arguments = trace.event_arguments(event)
    width = element_bytes(str(arguments.get("dtype", "")))
    count = max(elements(arguments, way) for way in ("In", "Out"))
    return count * width if width and count >= 0 else -1


def elements(arguments: Mapping[str, Any], way: str) -> int:
    """The elements that a collective takes `In` or gives `Out`, -1 if that is no number of them.

    Example:
        >>> elements({"In msg nelems": 8}, "In"), elements({"Out msg nelems": "?"}, "Out")
        (8, -1)
    """
    count = arguments.get(f"{way} msg nelems")
    return count if isinstance(count, int) and 0 <= count < _MOST_ELEMENTS else -1


def collective_key(name: str, arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """The kind of a collective and its process group, as far as recorded.

    Example:
        >>> collective_key("ncclDevKernel_AllReduce_Sum_f32_RING_LL", {"Group size": 8})
        ('allreduce', '', '', '8')
    """
    kind = str(arguments.get("Collective name") or (_KIND.search(name) or [name])[0])
    return (kind.lower().replace("_", ""), *(str(arguments.get(key, "")) for key in _GROUP))
