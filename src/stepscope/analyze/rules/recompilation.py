"""`recompilation`: torch.compile compiles again while the training goes on."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Subject

_COMPILING = (
    r"dynamo_timed|compile_inner|^_compile|CompilationMetrics|compile_fx|entire_frame_compile"
)


def recompilation(subject: Subject) -> Iterator[Finding]:
    """Compilation inside the recorded steps, which come after the warm-up.

    Silent where nothing compiles in them, and where the recorder does not tell compilation
    (PyTorch before 2.4).
    """
    rows = subject.outermost(subject.find(_COMPILING, category=("annotation", "cpu_op")))
    if not len(rows):
        return
    yield subject.finding(
        f"torch.compile compiles {subject.calls(rows):.4g} times a step: "
        f"{subject.ms(rows):.4g} ms.",
        "Something that it took for constant changes (see TORCH_LOGS=recompiles): mark a varying "
        "size with torch._dynamo.mark_dynamic or dynamic=True, pad batches to a few sizes, and "
        "keep numbers that change in tensors.",
        rows,
        subject.bound(subject.ms(rows), "at most the time of compiling"),
    )
