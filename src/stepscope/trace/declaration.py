"""How a table is declared: its columns, their types and meanings, and the closed lists of words."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Column:
    """One column: `kind` is i8, i32, i64, f64 or text; a nullable integer stores null as -1.

    `refers` names the table whose row numbers it holds, or is `file` for positions in the source
    file, or `clock` for times on the trace's clock. Text with a closed list of `values` is coded by
    their order.
    """

    name: str
    kind: str
    meaning: str
    unit: str = ""
    nullable: bool = False
    refers: str = ""
    values: tuple[str, ...] = ()


@dataclass(frozen=True)
class Schema:
    """One table: its name, the meaning of a row, and its columns."""

    name: str
    meaning: str
    columns: tuple[Column, ...]

    def column(self, name: str) -> Column:
        """The column `name`; raises KeyError if it does not exist."""
        for column in self.columns:
            if column.name == name:
                return column
        raise KeyError(name)


def id_column(what: str) -> Column:
    """The row number of a table, which is not stored."""
    return Column("id", "i32", f"row number of the {what}")


def reference(name: str, table: str, meaning: str = "", nullable: bool = False) -> Column:
    """Row numbers of a table."""
    return Column(name, "i32", meaning or f"{table}.id", nullable=nullable, refers=table)


def time_column(name: str, meaning: str, nullable: bool = False) -> Column:
    """Times on the trace's clock."""
    return Column(name, "i64", meaning, "ns", nullable, refers="clock")


def word_column(name: str, words: tuple[str, ...], meaning: str = "", nullable: bool = False) -> Column:
    """Words of a closed list."""
    return Column(name, "text", meaning or f"one of {', '.join(words)}", nullable=nullable, values=words)


RANK = Column("rank", "i32", "rank of the process in a distributed job, 0 if there is only one")
STEP = Column("step", "i32", "number of the training step, as the recorder counts")

COMPUTING = ("kernel", "memcpy", "memset")
DEVICE_WORK = (*COMPUTING, "communication")
CATEGORIES = ("cpu_op", "python", "runtime", *DEVICE_WORK, "sync", "annotation", "other")
STAGES = (
    *("data_loading", "transfer", "forward", "loss", "zero_grad", "backward", "optimizer"),
    *("prefill", "decode", "prefill_decode", "evaluation", "checkpointing", "other"),
)
INFERENCE_STAGES = ("prefill", "decode", "prefill_decode")
MODEL_STAGES = ("forward", *INFERENCE_STAGES)  # calls of the model
FORWARD_STAGES = (*MODEL_STAGES, "loss")
PASS_STAGES = (*FORWARD_STAGES, "backward")
TRAINING_STAGES = ("zero_grad", "backward", "optimizer")  # what only training has
OUTSIDE_STAGES = ("evaluation", "checkpointing", "other")  # what does not train
TRACK_KINDS = ("cpu", "device", "communication")
PRODUCT_KINDS = ("gemm", "convolution", "attention")  # of kernels: the arithmetic of a network
_OTHER_KERNELS = ("normalization", "elementwise", "reduction", "embedding", "optimizer")
KERNEL_KINDS = (*PRODUCT_KINDS, *_OTHER_KERNELS, "memcpy", "memset", "communication", "other")
IDLE_CAUSES = ("data", "synchronization", "communication", "host", "launch", "one_off", "unknown")
SEVERITIES = ("info", "warning", "critical")
BOUNDS = ("cpu", "device", "data", "communication")
_CODE_KINDS = ("root", "thread", "step", "annotation", "python", "module", "operator", "native", "runtime")
CONTEXT_KINDS = (*_CODE_KINDS, *DEVICE_WORK, "sync", "instruction", "unlinked", "others", "other")
VIAS = ("call", "backward", "launch")
