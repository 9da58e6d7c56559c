"""The tables of memory (of a trace, of snapshots, of `run --memory`), and those that analyses fill."""

from stepscope.trace.declaration import (
    CONTEXT_KINDS,
    RANK,
    SEVERITIES,
    STAGES,
    VIAS,
    Column,
    Schema,
    id_column,
    reference,
    time_column,
    word_column,
)

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

# What reports call the kinds of storages.
STORAGE_KINDS = {
    "parameter": "weights",
    "buffer": "buffers",
    "gradient": "gradients",
    "optimizer_state": "optimizer state",
    "input": "inputs",
}

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


# -- the tables that analyses fill

OPERATIONS = Schema(
    "operations",
    "the floating-point operations and bytes of one piece of device work; filled for a query that "
    "names this table",
    (
        reference("event", "events"),
        Column("flops", "i64", "floating-point operations of a matrix product", nullable=True),
        Column("bytes", "i64", "minimum bytes read and written", "B", nullable=True),
        word_column(
            "precision",
            ("half", "tf32", "fp32"),
            "of a matrix product: half (16 bits), tf32 or fp32",
            nullable=True,
        ),
    ),
)

FINDINGS = Schema(
    "findings",
    "one finding of an analyzer rule; filled for a query that names this table or evidence",
    (
        id_column("finding"),
        Column("rule", "text", "name of the rule"),
        word_column("severity", SEVERITIES),
        RANK,
        Column("what", "text", "what is slow"),
        Column("advice", "text", "what to do"),
        Column("gain_ns", "i64", "time that a fix could save per step", "ns"),
        Column("share", "f64", "the same as a fraction of the step"),
        Column("gain_by", "text", "source of the gain: a what-if change, or a bound in words"),
        Column("changes", "text", "the what-if changes, as `stepscope whatif` takes them"),
    ),
)

EVIDENCE = Schema(
    "evidence",
    "one event, or one node of the calling-context tree, that shows a finding",
    (
        reference("finding", "findings"),
        reference("event", "events", nullable=True),
        reference("context", "contexts", nullable=True),
        Column("module", "text", "path of its module, empty if unknown"),
        Column("file", "text", "file of the user's code that led to it, empty if unknown"),
        Column("line", "i32", "its line", nullable=True),
    ),
)

CONTEXTS = Schema(
    "contexts",
    "one node of the calling-context tree; filled if the capture holds one, else for a query that "
    "names this table",
    (
        id_column("node"),
        reference("parent", "contexts", "contexts.id of its caller", nullable=True),
        word_column("kind", CONTEXT_KINDS),
        word_column("via", VIAS, "relation to its parent: called by it, backward of it, or launched by it"),
        Column("name", "text", "function, module path, operator or kernel"),
        Column("file", "text", "source file, empty if unknown"),
        Column("line", "i32", "line in it", nullable=True),
        word_column("stage", STAGES, "its stage, if all of it is in one", nullable=True),
        Column("module", "text", "path of its module, if all of it is in one", nullable=True),
        Column("work", "text", "kind of a kernel (events.kind)", nullable=True),
    ),
)

CONTEXT_METRICS = Schema(
    "context_metrics",
    "the samples of one metric at one node of the calling-context tree",
    (
        reference("context", "contexts"),
        Column("metric", "text", "name of the metric"),
        Column("unit", "text", "its unit; empty for a number"),
        Column("meaning", "text", "what one sample is"),
        Column("inclusive", "i8", "1 if the samples include the calls below the node"),
        Column("count", "i64", "samples"),
        Column("sum", "f64", "sum of the samples"),
        Column("min", "f64", "smallest sample"),
        Column("max", "f64", "largest sample"),
        Column("squares", "f64", "sum of their squared distances from the mean"),
    ),
)

WARNINGS = Schema(
    "warnings",
    "one thing that could not be read, linked or attributed",
    (
        RANK,
        Column("code", "text", "short, stable name"),
        Column("message", "text", "description"),
        Column("count", "i64", "number of occurrences"),
    ),
)
