"""`stepscope view`: the page, over a local server."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.faces.terminal.options import NamedPath, opens_traces, takes_port, takes_rules
from stepscope.faces.terminal.output import say
from stepscope.faces.terminal.status import watched_files

if TYPE_CHECKING:
    from stepscope.models.ranks.job import ManyRanks


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=NamedPath(path_type=Path))
@takes_port(1, "Port to listen on [default: the first free port from 8765].")
@click.option("--no-browser", is_flag=True, help="Print the URL without opening a browser.")
@takes_rules
@opens_traces
def view(
    files: tuple[Path, ...],
    port: int | None,
    no_browser: bool,
    model: str | None,
    rules: tuple[str, ...],
    no_cache: bool,
    **how: Any,
) -> None:
    """Open FILE… (captures, traces, memory snapshots, folders of ranks, a watched run) in the browser.

    Serves the page on this machine only, to anyone with the token in the printed URL. Press Ctrl-C
    to stop. For a folder of more than 16 ranks, the page compares the ranks by their sketches, and
    reads the trace of a rank when you open it.
    """
    from stepscope.analyze import load_rules
    from stepscope.faces.page import bundle
    from stepscope.faces.page.open_files import Workbench
    from stepscope.faces.page.server import serve
    from stepscope.facts.load import open as open_trace

    custom = [rule for path in rules for rule in load_rules(path)]
    read = partial(open_trace, **how)
    if watched := [file for path in files for file in watched_files(str(path))]:
        from stepscope.faces.page.watch_answer import WatchedJob

        if len(files) > 1:
            raise click.UsageError(f"{watched[0]} is of a watched run; open it alone")
        bundle.page("watch.html")
        workbench = Workbench([], read, rules=custom, watch=WatchedJob(files[0].name, watched))
    elif many := _many(files, not no_cache):
        from stepscope.faces.terminal.ranks import job_workbench, name_of

        workbench = job_workbench(name_of(files), many, custom, **how)
    else:
        bundle.page()
        workbench = Workbench(files, read, rules=custom)
    serve(workbench, port, not no_browser, Path(model) if model else None, not no_cache)


def _many(files: tuple[Path, ...], cache: bool) -> ManyRanks | None:
    """The ranks of a folder of many; None for other files."""
    from stepscope.faces.page import bundle
    from stepscope.faces.terminal.source import many_ranks
    from stepscope.models.ranks.job import files_of_many

    for path in files:
        count = len(files_of_many(path))
        if count and len(files) > 1:
            raise click.UsageError(
                f"{path} holds {count} ranks, too many to show next to other files; open it "
                "alone, or name the files of some ranks"
            )
        if count:
            bundle.page("ranks.html")  # before minutes of reading
            say(f"! {count} ranks are compared by their sketches; traces are read when you open them")
            return many_ranks(path, cache)
    return None
