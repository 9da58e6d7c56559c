"""`input_bound`: the step waits for its next batch."""

from __future__ import annotations

from collections.abc import Iterator

from stepscope.analyze.finding import Finding
from stepscope.analyze.subject import Subject

LEAST = 0.05
ALONE = "Load in other processes: DataLoader(num_workers=…, persistent_workers=True)."
TOGETHER = (
    "Give the DataLoader more workers or a larger prefetch_factor, or do less for each sample: "
    "smaller files, decoding and augmenting on the device, caching."
)
JAX = (
    "Load the next batch while the step runs, in another thread or process (grain, tf.data with "
    "prefetch, a loader with workers), and send it ahead with jax.device_put; do less for each "
    "sample."
)


def input_bound(subject: Subject) -> Iterator[Finding]:
    """The step waits for data: the next batch is not there when the training loop asks for it.

    Silent where less than 5 % of the step passes that way, and where nothing marks the loading of
    data: no DataLoader, no range and no frame with such a name.
    """
    rows = subject.outermost(subject.find(stage="data_loading", on_device=False))
    waits = subject.idle_ms("data") if subject.has_device else subject.ms(rows)
    if not len(rows) or waits < LEAST * subject.step_ms:
        return
    alone = len(subject.find("_SingleProcessDataLoaderIter")) > 0
    who = "the device idles" if subject.has_device else "the training loop waits"
    how = ", by the training loop's own process (num_workers=0)." if alone else "."
    yield subject.finding(
        f"For {waits / subject.step_ms:.0%} of the step {who} while a batch is loaded{how}",
        subject.in_words(ALONE if alone else TOGETHER, jax=JAX),
        rows,
        subject.gain(rows, "dataloader"),
    )
