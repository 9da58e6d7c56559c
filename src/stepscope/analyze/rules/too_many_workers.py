"""`too_many_workers`: more processes load data than there are cores (DEEPCONTEXT 6.4)."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Subject


def too_many_workers(subject: Subject) -> Iterator[Finding]:
    """More data-loader workers than the machine has cores for.

    Silent where the file does not tell both numbers (captures of `stepscope run` do), and where the
    training loop never waits for data.

    Source: DEEPCONTEXT section 6.4: 16 workers on 6 cores; with 8 U-Net trained in 47 s, not 54.
    """
    capture = subject.trace.metadata.capture
    cores = capture.get("cpus_usable") or capture.get("cpu_count")
    workers = max((one.get("workers") or 0 for one in capture.get("loaders") or []), default=0)
    if not cores or workers <= cores:
        return
    gain = subject.whatif("dataloader")
    rows = subject.outermost(subject.find(stage="data_loading", on_device=False))
    if gain is None or not len(rows):
        return
    yield subject.finding(
        f"{workers} data-loader workers share {cores} CPU cores.",
        f"Set num_workers to at most {cores}: workers without a core only slow the others, "
        "and the training loop, down.",
        rows,
        gain,
    )
