"""The tables that analyses fill: operations, findings, contexts and warnings."""

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
    word_column,
)

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
