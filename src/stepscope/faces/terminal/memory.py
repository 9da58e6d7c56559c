"""`stepscope memory`: what fills a device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from stepscope.faces.terminal.output import echo_json, terminal
from stepscope.faces.terminal.source import InputFile, takes_file

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


@click.command()
@takes_file
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--gpu", type=int, help="Number of the device to show; the default is all.")
def memory(file: InputFile, as_json: bool, gpu: int | None) -> None:
    """Show what fills a device's memory, what fragments it, and what to do.

    FILE is a capture made with `stepscope run --memory`, a memory snapshot of PyTorch, as
    torch.cuda.memory._dump_snapshot writes it, or a timeline that the profiler's export_memory_timeline wrote
    as JSON. A snapshot is never unpickled: only plain data is read from it, and nothing in it can run.
    """
    show_memory(file.load(memory=True), as_json, gpu)


def show_memory(trace: Trace, as_json: bool, gpu: int | None = None) -> None:
    """Print what fills the memory of the devices of a trace, or of one; raises TraceError if nothing about
    memory was recorded, click.UsageError if there is no such device."""
    import msgspec

    from stepscope.models.memory import memory_facts
    from stepscope.models.memory.memory_findings import find_problems
    from stepscope.models.memory.memory_text import print_memory

    devices = [facts for facts in memory_facts(trace) if gpu in (None, facts.device)]
    if not devices:
        raise click.UsageError(f"the file has no device {gpu}")
    if as_json:
        echo_json([{**msgspec.structs.asdict(facts), "findings": find_problems(facts)} for facts in devices])
        return
    console = terminal()
    for facts in devices:
        print_memory(console, facts)
