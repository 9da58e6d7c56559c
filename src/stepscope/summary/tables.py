"""The plain table that all texts for a terminal use."""

from __future__ import annotations

from rich import box
from rich.table import Table


def plain_table(title: str, *heads: str) -> Table:
    """A table without lines; a head that ends with `>` stands for a column of numbers."""
    table = Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        show_edge=False, pad_edge=False, header_style="dim",
    )  # fmt: skip
    for head in heads:
        right = head.endswith(">")
        table.add_column(
            head.rstrip(">"), justify="right" if right else "left", no_wrap=len(head) < 15
        )
    return table
