"""The iterations of a server in a terminal report."""

from __future__ import annotations

from rich.table import Table
from rich.text import Text

from stepscope.summary.facts import Iterations
from stepscope.summary.numbers import count, ms
from stepscope.summary.text_tables import STAGE_STYLE, plain_table, stage_words

_UNKNOWN = "–"


def iterations_table(kinds: list[Iterations]) -> Table:
    """The kinds as a table of a report."""
    table = plain_table(
        "Iterations, means", "", "count>", "CPU ms>", "prompts>", "prompt tokens>", "decoding>",
        "decoded tokens>",
    )  # fmt: skip
    for kind in kinds:
        numbers = (kind.prefill_requests, kind.prefill_tokens, kind.decode_requests,
                   kind.decode_tokens)  # fmt: skip
        cells = (_UNKNOWN if number is None else count(round(number)) for number in numbers)
        name = Text(stage_words(kind.stage), STAGE_STYLE[kind.stage])
        table.add_row(name, f"{kind.count}", ms(kind.ms), *cells)
    return table
