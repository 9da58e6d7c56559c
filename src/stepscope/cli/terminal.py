"""Where a command's text goes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

FILE_WIDTH = 120


def terminal() -> Console:
    """As wide as the terminal; in a pipe or a file wide enough for every column.

    What reads on there, a program or a colleague, is not helped by names cut to 80 columns.
    `COLUMNS` in the environment says otherwise.
    """
    from rich.console import Console

    wide = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console() if wide else Console(width=FILE_WIDTH)
