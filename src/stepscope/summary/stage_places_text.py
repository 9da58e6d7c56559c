"""Where work outside of training begins, in a terminal report."""

from __future__ import annotations

from rich.text import Text

from stepscope.summary.facts import StagePlace, Summary
from stepscope.summary.numbers import ms
from stepscope.summary.text_tables import stage_words

_LEAST, _MOST = 0.005, 5
_MUCH = 0.05  # of the step, in `other`


def places_text(summary: Summary) -> Text:
    """The longest places, one on a line; why the lines of `other` are not known, if it matters."""
    places = summary.places[:_MOST]
    lines = [_line(place) for place in places if place.share >= _LEAST]
    other = sum(stage.share for stage in summary.stages if stage.stage == "other")
    if summary.not_sampled and other >= _MUCH:
        lines.append(f"  other has no functions and lines: {summary.not_sampled}")
    return Text("\n".join(lines), "dim")


def _line(place: StagePlace) -> str:
    name = "" if place.function == "<module>" else f"{place.function}, "
    where = f"{name}{place.file.rpartition('/')[2]}:{place.line}"
    if not place.samples:
        return f"  {ms(place.ms)} ms of {stage_words(place.stage)} in {where}"
    time = f"about {ms(place.ms)} ± {ms(place.error_ms)} ms"
    return f"  {time} of {stage_words(place.stage)} in {where} ({place.samples} samples)"
