"""Reader of `samples.json`: which line the training loop's thread executed, as instants."""

from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct

from stepscope.base.typed_data import decode
from stepscope.read.shared import checked
from stepscope.trace.concat import stacked
from stepscope.trace.schema import INSTANTS
from stepscope.trace.table import Table, Text
from stepscope.trace.trace import Trace, clock_of

CATEGORY, IN_LOOP = "sample", "sample in the loop"  # of instants
NOT_SAMPLED = "not_sampled"  # property of a trace
Count = Annotated[int, Meta(ge=0, le=1 << 60)]


class SampledLine(Struct):
    """A function and one of its lines."""

    function: str
    file: str
    line: Count


class SamplerMark(Struct):
    """A range that the sampled thread made, by its name in the trace, and when."""

    name: str
    unix_ns: Annotated[int, Meta(ge=0, le=1 << 62)]


class Samples(Struct):
    """The form of samples.json."""

    thread: int = 0  # the sampled thread, as the system numbers it
    since_unix_ns: Annotated[int, Meta(ge=0, le=1 << 62)] = 0  # when the first sample was taken
    after_ns: list[Count] = []  # the time of each sample after the first
    place: list[Count] = []  # position in `places` of each sample
    places: list[SampledLine] = []
    # Relates the thread and its clock to the trace; None where both have Unix times and thread numbers.
    mark: SamplerMark | None = None
    loop: list[Count] = []  # positions in `places` of lines of the training loop, and of what calls it
    lacks: str = ""  # why nothing was sampled


def with_samples(trace: Trace, text: bytes) -> Trace:
    """The trace with an instant for each sample, named `FUNCTION (FILE:LINE)`.

    Where nothing was sampled, its property `not_sampled` says why. Raises IngestError if the text has
    another form.
    """
    with checked("samples.json"):
        samples = decode(text, Samples)
        if len(samples.after_ns) != len(samples.place):
            raise ValueError("columns differ in length")
        if max([*samples.place, *samples.loop], default=-1) >= len(samples.places):
            raise ValueError("a place is not in the list")
    if samples.lacks:
        properties = {**trace.metadata.properties, NOT_SAMPLED: samples.lacks}
        return trace.with_metadata(properties=properties)
    place = _place(trace, samples)
    return trace.with_table(_joined(trace, samples, *place)) if place else trace


def _place(trace: Trace, samples: Samples) -> tuple[int, int] | None:
    """The track of the sampled thread, and the time of the first sample in the trace, if known."""
    if samples.mark:
        marks = np.flatnonzero(trace.events.text("name").mask(samples.mark.name))
        track, time = (trace.events[name][marks] for name in ("track", "start_ns"))
        since = samples.since_unix_ns - samples.mark.unix_ns
    else:
        track = np.flatnonzero(trace["tracks"].text("thread").mask(str(samples.thread)))
        time, since = np.zeros_like(track), samples.since_unix_ns - clock_of(trace.metadata)
    return (int(track[0]), int(time[0]) + since) if len(track) else None


def _joined(trace: Trace, recorded: Samples, track: int, since: int) -> Table:
    """The instants of the trace, and one for each sample from the time `since` on."""
    names = [f"{place.function} ({place.file}:{place.line})" for place in recorded.places]
    loop = set(recorded.loop)
    kinds = [IN_LOOP if place in loop else CATEGORY for place in recorded.place]
    count = len(recorded.place)
    samples: dict[str, Any] = {
        "time_ns": np.array(recorded.after_ns, np.int64) + since,
        "track": np.full(count, track),
        "source": np.full(count, -1),
        "name": [names[place] for place in recorded.place],
        "category": kinds,
        "phase": Text.constant("i", count),
    }
    return stacked([trace["instants"], Table(INSTANTS, samples)])
