"""`stepscope cache`: what is kept of files opened before."""

from __future__ import annotations

import click


@click.command()
@click.option("--clear", is_flag=True, help="Delete all of it.")
def cache(clear: bool) -> None:
    """Show, or clear, what is kept of files opened before.

    $STEPSCOPE_CACHE sets the folder (`off`: keep nothing), $STEPSCOPE_CACHE_BYTES its bound.
    """
    from stepscope.trace import cache as kept

    folder = kept.cache_folder()
    if folder is None:
        click.echo(f"off (${kept.FOLDER_VARIABLE})")
    elif clear:
        click.echo(f"{folder}: {kept.clear() / 1e6:.1f} MB deleted")
    else:
        bound = kept.limit_bytes()
        click.echo(f"{folder}: {kept.total_bytes() / 1e6:.1f} MB of at most {bound / 1e6:.0f} MB")
