"""`stepscope redact`: a recording without names of files, machines, people and modules."""

import io
import json
import os
import zipfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import click

from stepscope.base.input_files import content_of
from stepscope.base.watch_format import SUFFIX, is_watched_run
from stepscope.errors import IngestError
from stepscope.faces.terminal.options import NamedPath, takes_path
from stepscope.faces.terminal.output import printable, write_bytes
from stepscope.faces.terminal.source import InputFile, takes_file
from stepscope.read.flight_recorder import is_dump, read_dump, redacted_dump
from stepscope.read.rank_folder import rank_of, trace_files
from stepscope.read.recorded.capture_file import TABLES
from stepscope.read.watched_run import read_watched_run, redacted_run
from stepscope.trace.portable import to_bytes
from stepscope.trace.redact import REVEALED, Words, own_words, redacted
from stepscope.trace.trace import Trace


@click.command()
@takes_file
@click.argument("out", type=NamedPath())
@takes_path(
    "--key",
    "FILE",
    "File with the secret key of the replacements; by default `redaction.key` in your data folder.",
)
def redact(file: InputFile, out: str, key: str | None) -> None:
    """Write FILE to OUT without what identifies you, as a capture that every command reads.

    Paths, hosts, users, arguments, texts and the names of your modules and functions are replaced, the
    same name by the same in all files redacted with one key. Kernels, operators and numbers are kept, so
    that reports stay the same. Of a folder with one file per rank, OUT is such a folder. Watched runs and
    dumps of PyTorch's flight recorder are redacted likewise.

    \b
    stepscope redact train.stepscope shared.stepscope
    stepscope redact trace.json.gz shared.stepscope
    """
    path, target = Path(file.path), Path(out)
    secret = content_of(key) if key else None
    if secret == b"":
        raise click.UsageError(f"{key} is empty, so that anyone could look names up; write a secret into it")
    words = own_words() if secret is None else Words(secret)
    if target.exists() and path.exists() and target.samefile(path):
        raise click.UsageError(f"{out} is the file to redact; give another name")
    if path.is_dir():
        _say(_redact_folder(file, target, words))
        return
    if target.suffix != ".stepscope" and not _is_other(path):
        raise click.UsageError(f"{out}: a redacted file is a capture; name it {target.stem}.stepscope")
    write_bytes(target, _redacted(file, words)[2])
    _say([target])


def _redact_folder(file: InputFile, out: Path, words: Words) -> list[Path]:
    """A file for each rank, named by its position: names of files may identify, too."""
    folder = Path(file.path)
    out.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for row, path in enumerate(_files_in(folder)):
        suffix, rank, content = _redacted(replace(file, path=str(path)), words)
        target = out / (f"file{row}{suffix}" if rank is None else f"rank{rank}{suffix}")
        target = out / f"rank{rank}_file{row}{suffix}" if target in written else target
        write_bytes(target, content)
        written.append(target)
        # Why a job hangs depends on when dumps were written.
        os.utime(target, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    return written


def _files_in(folder: Path) -> list[Path]:
    """What can be redacted: beside the file of a watched run are its recordings."""
    found = [*filter(_is_other, sorted(folder.iterdir()))]
    with suppress(*([IngestError] if found else [])):
        found += [path for path in trace_files(folder)[0] if path not in found]
    return found


def _is_other(path: Path) -> bool:
    """Whether a file is one of a watched run or a dump of the flight recorder, which are no traces."""
    return is_watched_run(path) or is_dump(path)


def _redacted(file: InputFile, words: Words) -> tuple[str, int | None, bytes]:
    """The ending, the rank and the content of the redacted file."""
    path = Path(file.path)
    if is_watched_run(path):
        return SUFFIX, read_watched_run(path).facts.rank, redacted_run(path, words)
    if _is_other(path):
        return ".json", read_dump(path).rank, redacted_dump(path, words)
    trace = file.open(memory=True)
    return ".stepscope", rank_of(path, trace.metadata), _capture(redacted(trace, words))


def _capture(trace: Trace) -> bytes:
    manifest = {"format": "stepscope capture", "version": 1, "outcome": "complete", "message": "redacted"}
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in (("manifest.json", json.dumps(manifest)), (TABLES, to_bytes(trace))):
            archive.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
    return content.getvalue()


def _say(written: list[Path]) -> None:
    names = ", ".join(map(str, written[:3])) + (", …" if written[3:] else "")
    click.echo(f"wrote {printable(names)}; what it still reveals:")
    for line in REVEALED:
        click.echo(f"  {line}")
