"""The tables of memory: allocations in a trace, snapshots, and what `run --memory` records."""

from stepscope.trace.declaration import RANK, Column, Schema, id_column, reference, time_column

MEMORY = Schema(
    "memory",
    "one allocation or release",
    (
        time_column("time_ns", "time"),
        RANK,
        Column("device", "text", "cpu, cuda:0, …"),
        Column("address", "i64", "address; PyTorch recorded none in 2021", nullable=True),
        Column("bytes", "i64", "size; negative for a release", "B"),
        Column("allocated_bytes", "i64", "bytes allocated on the device after it", "B", nullable=True),
        Column(
            "reserved_bytes",
            "i64",
            "bytes that the caching allocator holds on the device after it",
            "B",
            nullable=True,
        ),
        Column("category", "text", "its purpose, if known", nullable=True),
        reference("event", "events", "events.id of the innermost event around it", nullable=True),
    ),
)

SEGMENTS = Schema(
    "segments",
    "one piece of device memory that the caching allocator holds, in a memory snapshot",
    (
        id_column("segment"),
        Column("device", "i32", "number of the device"),
        Column("address", "i64", "address"),
        Column("bytes", "i64", "size", "B"),
        Column("stream", "i64", "stream that it belongs to"),
        Column("pool", "text", "small, large, …"),
        Column("expandable", "i8", "1 for an expandable segment"),
        Column("private", "i8", "1 in a private pool, as of a CUDA graph"),
        reference("stack", "stacks", "stacks.id of its allocation", nullable=True),
    ),
)

BLOCKS = Schema(
    "blocks",
    "one block of a segment, in use or free, at the moment of a memory snapshot",
    (
        id_column("block"),
        reference("segment", "segments"),
        Column("address", "i64", "address"),
        Column("bytes", "i64", "size", "B"),
        Column("requested_bytes", "i64", "size that the program requested", "B", nullable=True),
        Column("state", "text", "active_allocated, active_awaiting_free or inactive"),
        reference("stack", "stacks", "stacks.id of its allocation", nullable=True),
    ),
)

ALLOCATIONS = Schema(
    "allocations",
    "one allocation with its lifetime, from a memory snapshot",
    (
        id_column("allocation"),
        Column("device", "i32", "number of the device"),
        Column("address", "i64", "address"),
        Column("bytes", "i64", "size", "B"),
        Column("stream", "i64", "stream that it belongs to"),
        time_column("start_ns", "when; null before the history", nullable=True),
        time_column("request_ns", "when its release was requested", nullable=True),
        time_column("end_ns", "when released; null if alive", nullable=True),
        reference("stack", "stacks", "stacks.id of its allocation", nullable=True),
    ),
)

MEMORY_EVENTS = Schema(
    "memory_events",
    "one entry of an allocator's history, as a memory snapshot records it",
    (
        id_column("entry"),
        time_column("time_ns", "when"),
        Column("device", "i32", "number of the device"),
        Column("action", "text", "alloc, free_requested, free_completed, segment_alloc, oom, …"),
        Column("address", "i64", "address", nullable=True),
        Column("bytes", "i64", "size", "B"),
        Column("stream", "i64", "stream"),
        Column("device_free_bytes", "i64", "free on the device, for oom", "B", nullable=True),
        reference("stack", "stacks", "stacks.id of the call", nullable=True),
    ),
)

STACKS = Schema(
    "stacks",
    "one frame of a call stack; a stack is its innermost frame, with its callers as parents",
    (
        id_column("frame"),
        reference("parent", "stacks", "stacks.id of the caller", nullable=True),
        Column("function", "text", "name of the function"),
        Column("file", "text", "source file, empty where unknown"),
        Column("line", "i32", "line in it", nullable=True),
    ),
)

STORAGES = Schema(
    "storages",
    "one piece of memory that training keeps from step to step, in a capture with `--memory`",
    (
        id_column("storage"),
        Column("moment", "text", "before or after the recorded steps"),
        Column("device", "text", "cpu, cuda:0, …"),
        Column("address", "i64", "address"),
        Column("bytes", "i64", "size", "B"),
        Column("kind", "text", "parameter, buffer, gradient, optimizer_state or input"),
        Column("path", "text", "path of its module, empty where there is none"),
        Column("name", "text", "name in its module"),
        Column("file", "text", "source file that made a parameter, empty where unknown"),
        Column("line", "i32", "line in it", nullable=True),
    ),
)

TENSOR_USES = Schema(
    "tensor_uses",
    "one tensor that an operator reads or writes, in a capture with `--memory`",
    (
        reference("event", "events", "events.id of the operator", nullable=True),
        time_column("time_ns", "when the operator begins"),
        Column("address", "i64", "address of the tensor's storage"),
        Column("shape", "text", "sizes, as 8,128"),
        Column("dtype", "text", "float32, bfloat16, …"),
    ),
)
