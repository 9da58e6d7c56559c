"""`stepscope mcp` and `lsp`: the servers for coding assistants and for editors."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.errors import ServeError
from stepscope.faces.terminal.options import NamedPath, takes_port

if TYPE_CHECKING:
    from stepscope.faces.assistant.answers import Recordings

TOKEN = "STEPSCOPE_MCP_TOKEN"
_SKILL = Path(__file__).parents[1] / "assistant" / "SKILL.md"


def _show_skill(context: click.Context, option: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(_SKILL.read_text("utf-8"), nl=False)
        context.exit()


@click.command()
@click.argument("folders", metavar="FOLDER...", nargs=-1, required=True, type=NamedPath(exists=True))
@click.option("--allow-run", is_flag=True, help="Also offer run, verify and calibrate, which run code.")
@takes_port(
    0, "Serve HTTP on this port of 127.0.0.1 instead of standard input; 0 chooses a free one.", metavar="N"
)
@click.option(
    "--skill",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_skill,
    help="Print a skill (how to investigate a slow step) for SKILL.md; needs no FOLDER.",
)
@click.option("--no-cache", is_flag=True, help="Do not use the cache.")
def mcp(folders: Sequence[str], allow_run: bool, port: int | None, no_cache: bool) -> None:
    """Start the server for coding assistants, of the Model Context Protocol.

    An assistant can open recordings in each FOLDER and below, and nothing else. The server speaks on
    standard input and output, as assistants expect. With --port it serves streamable HTTP; clients
    send the printed token, or that of $STEPSCOPE_MCP_TOKEN, as Authorization: Bearer.
    """
    try:
        import mcp.server.mcpserver  # noqa: F401 - is it installed, in a version that has it?
    except ImportError:
        raise ServeError("stepscope mcp needs the SDK: pip install 'stepscope[mcp]'") from None
    from stepscope.faces.assistant.answers import Answers, Programs, Recordings
    from stepscope.faces.assistant.server import make_server, serve_http
    from stepscope.faces.page.guard import Token

    recordings = Recordings([Path(folder) for folder in folders], not no_cache)
    server = make_server(Answers(recordings, document_of), Programs(recordings) if allow_run else None)
    if port is None:
        server.run("stdio")
    else:
        token = os.environ.get(TOKEN) or Token().secret
        serve_http(server, token, port, lambda line: print(line, file=sys.stderr, flush=True))


def document_of(recordings: Recordings, file: str, tokens: int) -> str:
    """The document of `stepscope explain` about one of some recordings."""
    from stepscope.faces.terminal.explain import document
    from stepscope.faces.terminal.source import InputFile

    path, capture = str(recordings.path(file)), str(recordings.graph_capture or "") or None
    source = InputFile(path, None, False, recordings.cache, None, recordings.range_name, capture)
    return document(source, tokens, None, True)


@click.command()
@takes_port(0, "Listen on a port instead of standard input; 0 chooses a free one.", metavar="N")
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on.")
def lsp(port: int | None, host: str) -> None:
    """Start the language server, which shows editors what each line costs.

    It speaks on standard input and output, as editors expect. With --port it listens on a socket,
    and the editor must send the printed token as initializationOptions.token.
    """
    from stepscope.faces.editor.start import start_on_port, start_on_streams

    if port is None:
        start_on_streams()
    else:
        start_on_port(host, port, click.echo)
