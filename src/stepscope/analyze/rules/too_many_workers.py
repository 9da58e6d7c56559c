"""`too_many_workers`: more data-loader workers than cores (DEEPCONTEXT 6.4)."""

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.rule_context import RuleContext
from stepscope.analyze.rules.input_bound import READY
from stepscope.trace.recorded_steps import cpus_of, workers_of

CAUSE = "input"
EXPLAINS = ("data",)


def too_many_workers(context: RuleContext) -> Iterator[Finding]:
    """More data-loader workers than the machine has cores for.

    Silent if the file does not record both numbers (captures of `stepscope run` do), and if the
    training loop never waits for data.

    Source: DEEPCONTEXT section 6.4: U-Net on 6 cores took 54 s with 16 workers and 47 s with 8.
    """
    capture = context.trace.metadata.capture
    cores = cpus_of(capture)
    workers = workers_of(capture)
    if not cores or workers <= cores:
        return
    gain = context.gains.whatif("dataloader")
    rows = context.search.outermost(context.search.find(stage="data_loading", on_device=False))
    if gain is None or not len(rows):
        return
    yield context.finding(
        f"{workers} data-loader workers share {cores} CPU cores.",
        f"Set num_workers to at most {cores}: workers without a core slow down the others and the "
        f"{context.loop}. More help only where they wait themselves, as for a disk.",
        rows,
        gain.as_bound(READY),
        patch=context.patch("loader", num_workers=str(cores)),
    )
