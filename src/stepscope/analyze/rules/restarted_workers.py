"""`restarted_workers`: the workers of a data loader are started again for every epoch."""

from collections.abc import Iterator

from stepscope.analyze.finding import Finding, Place, only_call
from stepscope.analyze.measures import LEAST_SHARE
from stepscope.analyze.rule_context import RuleContext
from stepscope.base.numbers import plural, rounded
from stepscope.trace.recorded_steps import worker_restarts

CAUSE = "input"
EXPLAINS = ("data",)
KEEP = "Keep the workers between epochs: DataLoader(..., persistent_workers=True)"
REMAKE = (
    "Create the DataLoader once, before the loop over the epochs, and keep its workers: "
    "persistent_workers=True"
)
ALONE = "If a sample takes microseconds, num_workers=0 is faster still."
LIBRARIES = {"transformers": "Set dataloader_persistent_workers=True in TrainingArguments."}
WHY = "the starts and stops of workers after the first, and the waits for their first batches"
# Workers that live on also load ahead while the loop does other things, and starts of processes slow
# the loop too.
MARGIN = 0.25  # of the waits; 1.17 and 1.24 times the waits were saved: benchmarks/advice.py


def restarted_workers(context: RuleContext) -> Iterator[Finding]:
    """Data-loader workers that are started again for every epoch, while the training loop waits.

    Silent if that takes less than 5 % of the run after its start-up, and if the file does not
    record it (captures of `stepscope run` do).
    """
    capture = context.trace.metadata.capture
    restarts, run = worker_restarts(capture), context.measures.summary.run
    if restarts is None or run is None or not run.steps:
        return
    most_ms, least_ms = (ns / 1e6 / run.steps for ns in (restarts.most_ns, restarts.least_ns))
    if most_ms < LEAST_SHARE * context.measures.run_ms:
        return
    call = only_call(context.trace.metadata, "loader") or {}
    created = call.get("file", ""), call.get("line")  # if that is one line
    count = restarts.restarts / run.steps
    each = rounded(restarts.most_ns / 1e6 / restarts.restarts)
    yield context.finding_of_run(
        f"The DataLoader starts its {plural(restarts.workers, 'worker')} again {restarts.restarts} "
        f"times. As for every epoch, the {context.loop} waits {each} ms each time.",
        f"{context.advice(REMAKE if restarts.remakes_loader else KEEP, **LIBRARIES)}. {ALONE}",
        (Place("starting workers", "data_loading", "", *created, "", count, most_ms),),
        context.gains.of_run(most_ms, WHY, least_ms, (1 + MARGIN) * most_ms),
        None if restarts.remakes_loader else context.patch("loader", persistent_workers="True"),
    )
