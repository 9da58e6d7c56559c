"""The schema of a trace's tables; storage, SQL and `docs/reference/schema.md` follow from it."""

# ruff: noqa: F403, F405  (this module has every table and every list of words)
from stepscope.trace.analysis_schema import *
from stepscope.trace.declaration import *
from stepscope.trace.memory_schema import *

EVENTS = Schema(
    "events",
    "one slice of time on one track, in order of start",
    (
        id_column("event"),
        reference("parent", "events", "innermost event around it on its track", nullable=True),
        reference("track", "tracks"),
        Column("name", "text", "name as recorded"),
        word_column("category", CATEGORIES),
        time_column("start_ns", "start, relative to the trace's start"),
        Column("duration_ns", "i64", "duration", "ns"),
        Column("self_ns", "i64", "duration without the events directly inside it", "ns"),
        Column("step", "i32", "steps.step; device work has the step of its launch", nullable=True),
        word_column("stage", STAGES, nullable=True),
        reference(
            "module",
            "modules",
            "modules.id; backward work has the module of its forward event",
            nullable=True,
        ),
        word_column(
            "kind", KERNEL_KINDS, "kind of device work: one of " + ", ".join(KERNEL_KINDS), nullable=True
        ),
        Column("recompute", "i8", "1 for forward work repeated in backward (checkpointing)"),
        Column(
            "correlation",
            "i64",
            "the id that a launch and its device work share, or the run of a compiled program",
            nullable=True,
        ),
        Column(
            "sequence",
            "i64",
            "autograd's sequence number, shared by a forward operator and its backward",
            nullable=True,
        ),
        Column("forward_thread", "i64", "autograd's number of the forward thread", nullable=True),
        Column(
            "scope",
            "text",
            "the named scopes in which a compiled operation was traced, as recorded",
            nullable=True,
        ),
        reference(
            "origin",
            "origins",
            "origins.first of the operations that a compiled operation was made from",
            nullable=True,
        ),
        reference("forward_event", "events", "the forward event of a backward one", nullable=True),
        Column("bytes", "i64", "bytes moved by a copy, a memset or a collective", "B", nullable=True),
        Column("source", "i32", "position in the source file", refers="file"),
    ),
)

# Takes no gradient and is taken by a pass: made from data, or from parameters and constants. Lies
# between the passes. Takes gradients: updates, or adds them up. None of these.
ROLES = ("data", "constant", "pass", "update", "gradient", "result")

ORIGINS = Schema(
    "origins",
    "an operation as it was traced, from which a compiled operation was made, alone or with others",
    (
        id_column("origin"),
        reference("first", "origins", "origins.id of the first of its compiled operation"),
        Column("scope", "text", "the named scopes in which it was traced, as recorded"),
        reference("frame", "frames", "the frame in which it was traced", nullable=True),
        Column(
            "share",
            "f64",
            "its share in the operations and bytes of the compiled operation; shares add up to 1",
        ),
        word_column(
            "role",
            ROLES,
            "what the compiled operation is for, outside of the two passes of a program that differentiates",
            nullable=True,
        ),
    ),
)

INSTRUCTION_SAMPLES = Schema(
    "instruction_samples",
    "the samples of one instruction of one kernel whose warps waited for one reason",
    (
        reference("event", "events", "events.id of the kernel"),
        Column("reason", "text", "what they waited for, in the device's words; `selected` is nothing"),
        Column("instruction", "text", "as disassembled, and its offset; empty if unknown"),
        Column("file", "text", "file of its source, empty if unknown"),
        Column("line", "i32", "line in it", nullable=True),
        Column("count", "i64", "samples"),
    ),
)

INPUTS = Schema(
    "inputs",
    "what a compiled operation outside the two passes takes: an argument of its program, or a gradient",
    (
        id_column("input"),
        reference("first", "origins", "origins.id of the first of its compiled operation"),
        Column("argument", "text", "the name of the argument, empty for a gradient"),
        Column("scope", "text", "the named scopes of the operation that computed the gradient"),
        reference("frame", "frames", "the frame of that operation", nullable=True),
    ),
)

FRAMES = Schema(
    "frames",
    "a Python frame in which operations were traced",
    (
        id_column("frame"),
        reference("parent", "frames", "the frame that called it", nullable=True),
        Column("function", "text", "qualified name of the function, empty if unknown"),
        Column("file", "text", "source file"),
        Column("line", "i32", "line in it"),
    ),
)

TRACKS = Schema(
    "tracks",
    "one row of a timeline: a CPU thread, a device stream or a communication channel",
    (
        id_column("track"),
        word_column("kind", TRACK_KINDS),
        Column("name", "text", "name as recorded, or built from process and thread"),
        RANK,
        Column("process", "text", "process id as recorded"),
        Column("thread", "text", "thread id as recorded; the stream of a device track"),
        Column("device", "i32", "device index", nullable=True),
        Column("stream", "i64", "stream number", nullable=True),
    ),
)

STEPS = Schema(
    "steps",
    "one training step",
    (
        STEP,
        RANK,
        time_column("start_ns", "start on the CPU"),
        time_column("end_ns", "end on the CPU"),
        time_column(
            "device_end_ns",
            "end of the last work launched in it, on a device or, of compiled programs, on other threads",
            nullable=True,
        ),
        time_column(
            "window_start_ns",
            "start of its window: the end of the window before, else its start on the CPU, or when "
            "earlier work ends",
        ),
        time_column(
            "window_end_ns",
            "end of its window, when the CPU has left the step and its device work has ended; its "
            "length is window_end_ns - window_start_ns",
        ),
        Column("device_busy_ns", "i64", "busy time of the busiest device in its window", "ns"),
        Column("device_idle_ns", "i64", "idle time of the busiest device in its window", "ns"),
        Column(
            "evidence",
            "text",
            "how the step was detected: profiler_step, optimizer, iteration, compiled_call, "
            "range, pattern or whole_trace",
        ),
    ),
)

ITERATIONS = Schema(
    "iterations",
    "one iteration of an inference server or of a loop that generates tokens",
    (
        RANK,
        reference("track", "tracks", "tracks.id of the thread or stream"),
        word_column("stage", INFERENCE_STAGES),
        time_column("start_ns", "start on the CPU"),
        time_column("end_ns", "end on the CPU"),
        Column("prefill_requests", "i32", "requests whose prompts it processes", nullable=True),
        Column("prefill_tokens", "i32", "tokens of these prompts", nullable=True),
        Column("decode_requests", "i32", "requests for which it generates", nullable=True),
        Column("decode_tokens", "i32", "tokens that it processes for them", nullable=True),
    ),
)

STAGE_RUNS = Schema(
    "stages",
    "one unbroken run of a stage within a step",
    (
        STEP,
        RANK,
        word_column("stage", STAGES),
        Column(
            "optimizer",
            "text",
            "the optimizer whose step this run is or leads to, by the user's name or its class",
            nullable=True,
        ),
        time_column("start_ns", "start on the CPU"),
        time_column("end_ns", "end on the CPU"),
        Column("cpu_ns", "i64", "duration on the CPU", "ns"),
        Column("device_ns", "i64", "busy time of the device work launched in it, as a union", "ns"),
        time_column("device_start_ns", "start of its first device work", nullable=True),
        time_column("device_end_ns", "end of its last device work", nullable=True),
        word_column(
            "bound_by", BOUNDS, "what limits its duration: one of " + ", ".join(BOUNDS), nullable=True
        ),
    ),
)

MODULES = Schema(
    "modules",
    "one module of the model, by its path; times are totals over all recorded steps",
    (
        id_column("module"),
        reference("parent", "modules", "modules.id of the module around it", nullable=True),
        RANK,
        Column("path", "text", "path from the root, as in `state_dict`"),
        Column("name", "text", "last part of the path"),
        Column("class", "text", "class of the module"),
        Column("evidence", "text", "how its events were found: ranges, nn_module, scopes, stacks or matched"),
        Column("calls", "i64", "recorded forward calls"),
        Column("parameters", "i64", "parameters, including those of its children", nullable=True),
        Column("parameter_bytes", "i64", "their size", "B", nullable=True),
        Column("file", "text", "file of its class"),
        Column("line", "i32", "line of its class", nullable=True),
        Column("call_file", "text", "file it is called from"),
        Column("call_line", "i32", "line it is called from", nullable=True),
        Column("forward_cpu_ns", "i64", "CPU time in forward, including children", "ns"),
        Column(
            "forward_device_ns",
            "i64",
            "device busy time of its forward, as a union, without collectives",
            "ns",
        ),
        Column("backward_cpu_ns", "i64", "CPU time in backward, including children", "ns"),
        Column("backward_device_ns", "i64", "device busy time of its backward, as a union", "ns"),
        Column("recompute_cpu_ns", "i64", "CPU time of forward repeated in backward", "ns"),
        Column("recompute_device_ns", "i64", "device busy time of forward repeated in backward", "ns"),
        Column(
            "outside_cpu_ns", "i64", "CPU time outside of training: in rollouts, evaluation and other", "ns"
        ),
        Column("outside_device_ns", "i64", "device busy time outside of training", "ns"),
    ),
)

MODULE_SHARES = Schema(
    "module_shares",
    "an event that torch.compile made from several modules, and the part of it that is one of them",
    (
        reference("event", "events", "events.id; its module is the innermost around all"),
        reference("module", "modules", nullable=True),
        Column(
            "share", "f64", "of its self time, or of its time on a device; the shares of an event add up to 1"
        ),
    ),
)

LAUNCHES = Schema(
    "launches",
    "the link from a CPU call to the device work that it launched",
    (
        reference("cpu_event", "events", "events.id of the call"),
        reference("device_event", "events", "events.id of the device work"),
        Column("delay_ns", "i64", "from the start of the call to the start of the work", "ns"),
        Column("evidence", "text", "how it was found: correlation, flow, external_id or order"),
    ),
)

IDLE = Schema(
    "idle",
    "a part of a step during which a device is idle for one cause",
    (
        STEP,
        RANK,
        Column("device", "i32", "device index", nullable=True),
        time_column("start_ns", "start"),
        time_column("end_ns", "end"),
        word_column("cause", IDLE_CAUSES),
    ),
)

FLOWS = Schema(
    "flows",
    "one arrow between two events",
    (
        Column("kind", "text", "its category as recorded (ac2g, fwdbwd, …)"),
        reference("source_event", "events", "events.id at its tail", nullable=True),
        reference("target_event", "events", "events.id at its head", nullable=True),
    ),
)

INSTANTS = Schema(
    "instants",
    "one event without duration: a mark, or an event of any other phase",
    (
        time_column("time_ns", "time"),
        reference("track", "tracks"),
        Column("name", "text", "name as recorded"),
        Column("category", "text", "category as recorded"),
        Column("phase", "text", "the trace-event phase letter"),
        Column("source", "i32", "position in the source file", refers="file"),
    ),
)

COUNTERS = Schema(
    "counters",
    "one value of a counter",
    (
        time_column("time_ns", "time"),
        reference("track", "tracks"),
        Column("name", "text", "name of the counter"),
        Column("series", "text", "name of the value within the counter"),
        Column("value", "f64", "value"),
    ),
)

SCHEMAS: dict[str, Schema] = {
    schema.name: schema
    for schema in (
        *(EVENTS, TRACKS, STEPS, ITERATIONS, STAGE_RUNS, MODULES, MODULE_SHARES, LAUNCHES, IDLE),
        *(MEMORY, SEGMENTS, BLOCKS, ALLOCATIONS, MEMORY_EVENTS, STACKS, STORAGES, TENSOR_USES),
        *(FLOWS, INSTANTS, COUNTERS, OPERATIONS, INSTRUCTION_SAMPLES, ORIGINS, INPUTS, FRAMES),
        *(CONTEXTS, CONTEXT_METRICS, FINDINGS, EVIDENCE, WARNINGS),
    )
}
