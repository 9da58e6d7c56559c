"""A report of Nsight Systems (`.nsys-rep`), exported by the `nsys` that is installed."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from stepscope.errors import IngestError

_SUFFIXES = (".nsys-rep", ".qdrep")  # the second until version 2021.3
_TIMEOUT_S = 900  # exporting takes about as long as the recording did, and minutes for long ones
_COMMAND = "`nsys export --type sqlite FILE`"


def is_report(path: Path) -> bool:
    """Whether a file is a report by its name; the format itself is not documented."""
    return path.suffix in _SUFFIXES


@contextmanager
def exported(path: Path) -> Iterator[Path]:
    """The report as an SQLite database, in a folder of its own that goes with it.

    Raises:
        IngestError: if no `nsys` is installed, or it fails.
    """
    report, nsys = path.resolve(strict=True), shutil.which("nsys")
    if nsys is None:
        raise IngestError(
            f"only nsys can read its reports: where it is installed, run {_COMMAND}, and open that"
        )
    with TemporaryDirectory(prefix="stepscope-nsys-") as folder:
        database = Path(folder) / "report.sqlite"
        command = [nsys, "export", "--type", "sqlite", "--output", str(database), str(report)]
        try:
            subprocess.run(command, cwd=folder, timeout=_TIMEOUT_S, capture_output=True, check=True)
        except (subprocess.SubprocessError, OSError) as error:
            raise IngestError(f"{_reason(error)}; see what {_COMMAND} says") from error
        if not database.exists():
            raise IngestError(f"nsys exported nothing; see what {_COMMAND} says")
        yield database


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.TimeoutExpired):
        return f"nsys export timed out after {error.timeout:.0f} s"
    if isinstance(error, subprocess.CalledProcessError):
        said = (error.stderr or error.stdout or b"").decode("utf-8", "replace").split("\n")
        last = next((line.strip() for line in reversed(said) if line.strip()), "it says nothing")
        return f"nsys export failed with exit code {error.returncode}: {last[:200]}"
    return f"nsys cannot be run: {error}"
