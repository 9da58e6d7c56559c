"""`stepscope view`: the page, over a local server."""

from __future__ import annotations

from pathlib import Path

import click

from stepscope.cli.options import keeps_recorded_times
from stepscope.cli.path_options import NamedPath


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=NamedPath(path_type=Path))
@click.option("--port", type=click.IntRange(1, 65535),
              help="Port to listen on [default: the first free port from 8765].")  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Print the URL without opening a browser.")
@click.option("--model", metavar="JSON", type=NamedPath(path_type=Path),
              help="Model tree, for traces without modules.")  # fmt: skip
@keeps_recorded_times
@click.option("--no-cache", is_flag=True, help="Do not use the cache.")
def view(
    files: tuple[Path, ...],
    port: int | None,
    no_browser: bool,
    model: Path | None,
    as_recorded: bool,
    no_cache: bool,
) -> None:
    """Open FILE… (captures, traces, memory snapshots, folders of ranks) in the browser.

    Serves the page on this machine only, to anyone with the token in the printed URL. Press Ctrl-C
    to stop.
    """
    from stepscope.serve import bundle
    from stepscope.serve.open_files import Workbench
    from stepscope.serve.server import serve

    bundle.page()
    serve(Workbench(files, as_recorded), port, not no_browser, model, not no_cache)
