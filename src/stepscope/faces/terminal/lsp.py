"""`stepscope lsp`: the language server."""

import click


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    metavar="N",
    help="Listen on a port instead of standard input; 0 chooses a free one.",
)
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
