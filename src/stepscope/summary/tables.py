"""The plain table that all texts for a terminal use."""

from __future__ import annotations

from rich import box
from rich.table import Table


def plain_table(title: str, *heads: str) -> Table:
    """A table without lines.

    A head that ends with `>` stands for a column of numbers; one that ends with `~` for text that
    gives way where there is no room, if its cells do not wrap.
    """
    table = Table(
        title=f"\n{title}", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD,
        show_edge=False, pad_edge=False, header_style="dim",
    )  # fmt: skip
    for head in heads:
        right, stays = head.endswith(">"), len(head) < 15 and not head.endswith("~")
        table.add_column(head.rstrip(">~"), justify="right" if right else "left", no_wrap=stays)
    return table
