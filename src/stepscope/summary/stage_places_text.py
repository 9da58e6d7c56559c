"""Where work outside of training begins, in a terminal report."""

from __future__ import annotations

from rich.text import Text

from stepscope.summary.facts import StagePlace
from stepscope.summary.numbers import ms
from stepscope.summary.text_tables import stage_words

_LEAST, _MOST = 0.005, 5


def places_text(places: list[StagePlace]) -> Text:
    """The longest places, one on a line."""
    lines = [_line(place) for place in places[:_MOST] if place.share >= _LEAST]
    return Text("\n".join(lines), "dim")


def _line(place: StagePlace) -> str:
    about = "" if place.calls else "about "  # samples count no calls
    name = "" if place.function == "<module>" else f"{place.function}, "
    file = place.file.rpartition("/")[2]
    return f"  {about}{ms(place.ms)} ms of {stage_words(place.stage)} in {name}{file}:{place.line}"
