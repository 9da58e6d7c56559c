"""`stepscope cache`: what is kept on this machine, to be shown or cleared."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

_KINDS = ("traces", "calibrations", "collectors")


@click.command()
@click.argument("kinds", metavar=f"[{'|'.join(_KINDS)}]...", nargs=-1, type=click.Choice(_KINDS))
@click.option("--clear", is_flag=True, help="Delete it.")
def cache(kinds: tuple[str, ...], clear: bool) -> None:
    """Show, or clear, what is kept on this machine; by default all of it.

    \b
    traces        as read from files opened before; the oldest go first
    calibrations  what `stepscope calibrate` measured
    collectors    what `stepscope run --contexts` built

    $STEPSCOPE_CACHE sets the folder (`off`: keep neither traces nor calibrations),
    $STEPSCOPE_CACHE_BYTES what traces may take, $STEPSCOPE_BUILDS the folder of collectors.
    """
    for kind in kinds or _KINDS:
        folder, paths = _kept(kind)
        size = sum(map(_bytes, paths))
        if clear:
            _delete(paths)
        words = f"{len(paths)}{' deleted' * clear}, {size / 1e6:.1f} MB{_bound(kind)}"
        where = f"   {folder}" if folder else "   off ($STEPSCOPE_CACHE)"
        click.echo(f"{kind:<14}{words}{where}")


def _kept(kind: str) -> tuple[Path | None, list[Path]]:
    """Where things of a kind are kept, None for nowhere, and all of them."""
    if kind == "collectors":
        from stepscope.capture.contexts import build

        return build.folder(), build.kept()
    from stepscope.calibration import kept_calibrations
    from stepscope.trace import cache as traces

    kept = traces.entries() if kind == "traces" else kept_calibrations()
    return traces.cache_folder(), kept


def _bound(kind: str) -> str:
    from stepscope.trace import cache as traces

    return f" of at most {traces.limit_bytes() / 1e6:.0f} MB" if kind == "traces" else ""


def _bytes(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def _delete(paths: Sequence[Path]) -> None:
    from stepscope.errors import TraceError
    from stepscope.trace import store

    for path in paths:
        try:
            if path.is_dir():
                store.remove(path)
            else:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise TraceError(f"{path}: cannot be deleted: {error.strerror}") from error
