"""`stepscope redact`: a recording without names of files, machines, people and modules."""

from __future__ import annotations

import json
import os
import secrets
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from stepscope.faces.terminal.options import NamedPath
from stepscope.faces.terminal.source import InputFile, takes_file

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace

_KEY_BYTES = 32  # of a secret, as long as SHA-256's result


@click.command()
@takes_file
@click.argument("out", type=NamedPath())
@click.option(
    "--key",
    metavar="FILE",
    type=NamedPath(exists=True, dir_okay=False),
    help="Secret under which names are replaced; by default one of your own, kept next to settings.",
)
def redact(file: InputFile, out: str, key: str | None) -> None:
    """Write FILE to OUT without what identifies you, as a capture that every command reads.

    Paths, hosts, users, arguments, texts and the names of your modules and functions are replaced, the
    same name by the same in all files redacted with one key. Kernels, operators and numbers are kept, so
    that reports stay the same. Of a folder with one file per rank, OUT is such a folder.

    \b
    stepscope redact train.stepscope shared.stepscope
    stepscope redact trace.json.gz shared.stepscope
    """
    secret = Path(key).read_bytes() if key else own_key()
    write = _redact_folder if Path(file.path).is_dir() else _redact_file
    _say(write(file, Path(out), secret))


def own_key() -> bytes:
    """This user's secret, made once."""
    from platformdirs import user_data_path

    path = user_data_path("stepscope") / "redaction.key"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as new:
            new.write(secrets.token_bytes(_KEY_BYTES))
    except FileExistsError:
        pass
    return path.read_bytes()


def _redact_file(file: InputFile, out: Path, key: bytes) -> list[Path]:
    from stepscope.trace.redact import redacted

    if out.suffix != ".stepscope":
        raise click.UsageError(f"{out}: a redacted file is a capture; name it {out.stem}.stepscope")
    if out.exists() and out.samefile(file.path):
        raise click.UsageError(f"{out} is the file to redact; give another name")
    _write(redacted(file.open(memory=True), key), out)
    return [out]


def _redact_folder(file: InputFile, out: Path, key: bytes) -> list[Path]:
    """A file for each rank, named by its position: names of files may identify, too."""
    from stepscope.read.rank_folder import rank_of, trace_files
    from stepscope.trace.redact import redacted

    files, _ = trace_files(Path(file.path))
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for row, path in enumerate(files):
        trace = replace(file, path=str(path)).open(memory=True)
        rank = rank_of(path, trace.metadata)
        target = out / (f"file{row}.stepscope" if rank is None else f"rank{rank}.stepscope")
        target = out / f"rank{rank}_file{row}.stepscope" if target in written else target
        _write(redacted(trace, key), target)
        written.append(target)
    return written


def _write(trace: Trace, out: Path) -> None:
    from stepscope.base.unfinished_files import unfinished
    from stepscope.read.recorded.capture_file import TABLES
    from stepscope.trace.portable import to_bytes

    manifest = {"format": "stepscope capture", "version": 1, "outcome": "complete", "message": "redacted"}
    work = unfinished(out)
    with zipfile.ZipFile(work, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (("manifest.json", json.dumps(manifest)), (TABLES, to_bytes(trace))):
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    work.replace(out)


def _say(written: list[Path]) -> None:
    from stepscope.trace.redact import REVEALED

    names = ", ".join(map(str, written[:3])) + (", …" if written[3:] else "")
    click.echo(f"wrote {names}; what it still reveals:")
    for line in REVEALED:
        click.echo(f"  {line}")
