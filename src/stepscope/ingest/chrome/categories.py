"""Maps recorders' categories to the closed list `schema.CATEGORIES`.

Source: libkineto's ActivityType names over the years, and the exporter of PyTorch 1.8
(https://github.com/pytorch/kineto/blob/main/libkineto/src/ActivityType.cpp); the categories that
ROCprofiler SDK gives to Perfetto (ROCPROFILER_PERFETTO_CATEGORIES in its perfetto.hpp); those of
Paddle's tracer (paddle/fluid/platform/profiler/trace_event.h).
"""

from __future__ import annotations

import re

from stepscope.ingest.chrome.uncategorized import category_by_name

_EXACT = {
    "operator": "cpu_op",
    "cpu_op": "cpu_op",
    "user_annotation": "annotation",
    "gpu_user_annotation": "annotation",
    "python_function": "python",
    "runtime": "runtime",
    "external_correlation": "other",
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "hpu_op": "kernel",
    "memcpy": "memcpy",
    "gpu_memcpy": "memcpy",
    "memset": "memset",
    "gpu_memset": "memset",
    "cuda_sync": "sync",
    "collective_comm": "communication",
    "kernel_dispatch": "kernel",
    "memory_copy": "memcpy",
    "marker_api": "annotation",
    "profilestep": "annotation",
    "dataloader": "annotation",
    "forward": "annotation",
    "backward": "annotation",
    "optimization": "annotation",
    "operatorinner": "cpu_op",
    "dygraphkernellaunch": "cpu_op",
    "statickernellaunch": "cpu_op",
    "userdefined": "annotation",
    "pythonuserdefined": "annotation",
    "cudaruntime": "runtime",
    "overhead": "other",
    "trace": "other",
}
_PATTERNS = (
    (re.compile(r"_(runtime|driver|api)$"), "runtime"),
    (re.compile(r"(_kernel|_ccp_events)$"), "kernel"),
    (re.compile(r"_memcpy$"), "memcpy"),
    (re.compile(r"_memset$"), "memset"),
    (re.compile(r"_sync$"), "sync"),
    (re.compile(r"user_annotation$"), "annotation"),
)
# PyTorch 1.8 to 1.10 wrote the profiler's and users' ranges as operators; every version does so
# for the fast ranges that stepscope's recorder uses.
_RANGE = re.compile(
    r"^(ProfilerStep#|Optimizer\.|enumerate\(DataLoader\)|##|PyTorch Profiler"
    r"|stepscope\.(module|optimizer|evaluation|checkpointing|block):)"
)
# MTIA records its copies among its kernels.
_COPY = re.compile(r"^dma_request\b")
_ON_DEVICE = ("kernel", "memcpy", "memset", "sync", "communication")


def category(recorded: str, name: str) -> str:
    """The category of an event from its recorded category and its name.

    Example:
        >>> category("Operator", "aten::add"), category("Operator", "ProfilerStep#5")
        ('cpu_op', 'annotation')
        >>> category("mtia_ccp_events", "dma_request")
        'memcpy'
        >>> category("hip_api", "hipLaunchKernel"), category("kernel_dispatch", "Cijk_Ailk")
        ('runtime', 'kernel')
    """
    if not recorded:
        return "annotation" if _RANGE.match(name) else category_by_name(name)
    key = recorded.lower()
    found = _EXACT.get(key) or next((to for test, to in _PATTERNS if test.search(key)), "other")
    if found == "kernel" and _COPY.match(name):
        return "memcpy"
    return "annotation" if found == "cpu_op" and _RANGE.match(name) else found


def on_device(recorded: str) -> bool:
    """Whether events of this recorded category run on a device, so that their track is a stream."""
    return category(recorded, "") in _ON_DEVICE or recorded.lower() == "gpu_user_annotation"
