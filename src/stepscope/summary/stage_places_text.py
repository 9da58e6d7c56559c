"""Where work outside of training begins, in a terminal report."""

from __future__ import annotations

from rich.text import Text

from stepscope.summary.facts import StagePlace
from stepscope.summary.numbers import ms
from stepscope.summary.text_tables import stage_words

_LEAST, _MOST = 0.005, 5


def places_text(places: list[StagePlace]) -> Text:
    """The longest places, one on a line."""
    lines = [
        f"  {ms(place.ms)} ms of {stage_words(place.stage)} in {place.function}, "
        f"{place.file.rpartition('/')[2]}:{place.line}"
        for place in places[:_MOST]
        if place.share >= _LEAST
    ]
    return Text("\n".join(lines), "dim")
