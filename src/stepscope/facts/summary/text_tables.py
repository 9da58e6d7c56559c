"""Shared elements of terminal reports: plain table, bar, colors of stages."""

from rich import box
from rich.table import Table
from rich.text import Text

from stepscope.base.numbers import bar

WIDE = 100  # columns of a terminal that has room for all columns of a table
STAGE_STYLE = {
    "data_loading": "yellow",
    "transfer": "cyan",
    "forward": "green",
    "loss": "magenta",
    "zero_grad": "bright_black",
    "backward": "blue",
    "optimizer": "red",
    "prefill": "magenta",
    "decode": "cyan",
    "prefill_decode": "green",
    "evaluation": "magenta",
    "checkpointing": "cyan",
    "other": "bright_black",
}
TIME_WORDS = {
    "computing": "computing",
    "copying": "only copying",
    "communication": "exposed communication",
    "data": "idle, waiting for data",
    "synchronization": "idle, synchronization",
    "host": "idle, host bound",
    "launch": "idle, launch latency",
    "one_off": "idle, one-off costs",
    "unknown": "idle, cause unknown",
}


def stage_words(stage: str) -> str:
    """The name of a stage as a reader sees it.

    Example:
        >>> stage_words("zero_grad"), stage_words("prefill_decode")
        ('zero grad', 'prefill + decode')
    """
    return "prefill + decode" if stage == "prefill_decode" else stage.replace("_", " ")


def plain_table(title: str, *heads: str) -> Table:
    """A table without lines.

    A heading that ends with `>` makes a right-aligned column of numbers; one that ends with `~` a
    text column that shrinks if the table is too wide.
    """
    table = Table(
        title=f"\n{title}",
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        show_edge=False,
        pad_edge=False,
        header_style="dim",
    )
    for head in heads:
        right, stays = head.endswith(">"), len(head) < 15 and not head.endswith("~")
        table.add_column(head.rstrip(">~"), justify="right" if right else "left", no_wrap=stays)
    return table


def bar_for(share: float, style: str, width: int) -> Text:
    """A bar for a share, as long as a terminal of so many columns has room for."""
    return Text(bar(share, 20 if width >= 120 else 12 if width >= WIDE else 8), style)
