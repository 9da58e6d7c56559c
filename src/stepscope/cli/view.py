"""`stepscope view`: the page, over a local server."""

from __future__ import annotations

from pathlib import Path

import click

from stepscope.cli.paths import NamedPath


@click.command()
@click.argument("files", metavar="FILE…", nargs=-1, required=True, type=NamedPath(path_type=Path))
@click.option("--port", type=click.IntRange(1, 65535),
              help="Where to listen [default: the first free one from 8765 on].")  # fmt: skip
@click.option("--no-browser", is_flag=True, help="Print the URL, open no browser.")
@click.option("--model", metavar="JSON", type=NamedPath(path_type=Path),
              help="The model tree, for traces that name no module themselves.")  # fmt: skip
@click.option("--no-cache", is_flag=True, help="Neither use nor keep earlier results.")
def view(
    files: tuple[Path, ...], port: int | None, no_browser: bool, model: Path | None, no_cache: bool
) -> None:
    """Open FILE… (captures, traces, folders of ranks) in the browser.

    Serves the page on this machine alone, to whoever has the token in the URL that it prints.
    Ctrl-C ends it.
    """
    from stepscope.serve import bundle
    from stepscope.serve.server import serve
    from stepscope.serve.workbench import Workbench

    bundle.page()
    serve(Workbench(files), port, not no_browser, model, not no_cache)
