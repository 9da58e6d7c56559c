"""The folder of results that are kept between runs; others see its entries whole or not at all."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FOLDER_VARIABLE = "STEPSCOPE_CACHE"


def cache_folder() -> Path | None:
    """The cache's folder: $STEPSCOPE_CACHE, else the user's cache folder; None if it is `off`."""
    chosen = os.environ.get(FOLDER_VARIABLE, "")
    if chosen.lower() == "off":
        return None
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("stepscope"))


@contextmanager
def written(folder: Path) -> Iterator[Path]:
    """A folder to write into; it gets its name when the block ends, and replaces an existing one.

    Raises OSError if it cannot be written; nothing stays behind.
    """
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        yield work
        _replace(work, folder)
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _replace(work: Path, folder: Path) -> None:
    try:
        work.rename(folder)
    except OSError:
        remove(folder)
        work.rename(folder)


def remove(folder: Path) -> None:
    """Delete a folder; it is renamed first, so that nobody sees half of it."""
    with suppress(FileNotFoundError):
        trash = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            folder.rename(trash / folder.name)
        finally:
            shutil.rmtree(trash, ignore_errors=True)


def size(folder: Path) -> int:
    """The size of a folder's files, bytes."""
    return sum(member.stat().st_size for member in folder.iterdir())
