"""A trace that PyTorch could not write whole is an error with the system's reason."""

import resource
import signal
from pathlib import Path

import pytest

from stepscope.record.profiler_window import export_trace

WHOLE = b'{"traceEvents": [{"ph": "X", "name": "mm"}]}\n'


class Profiler:
    """Writes what it is given, and reports nothing, as PyTorch does."""

    def __init__(self, written: bytes | None) -> None:
        self.written = written

    def export_chrome_trace(self, path: str) -> None:
        if self.written is not None:
            Path(path).write_bytes(self.written)


def test_a_whole_trace_is_left_as_it_is(tmp_path: Path) -> None:
    for written in (WHOLE, b"[]", b'{"traceEvents": []}' + b"\n" * 30):
        export_trace(Profiler(written), tmp_path / "trace.json")
        assert (tmp_path / "trace.json").read_bytes() == written


@pytest.mark.parametrize("written", [None, *(WHOLE[:end] for end in range(len(WHOLE) - 2))])
def test_no_file_or_the_beginning_of_one_is_an_error(written: bytes | None, tmp_path: Path) -> None:
    if written is not None and written.endswith((b"}", b"]")):
        return  # an end that looks whole
    with pytest.raises(OSError, match="could not write the whole trace; is the disk full"):
        export_trace(Profiler(written), tmp_path / "trace.json")


@pytest.mark.parametrize("written", [None, WHOLE[:20]])
def test_the_reason_is_the_systems(written: bytes | None, tmp_path: Path) -> None:
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (30, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            export_trace(Profiler(written), tmp_path / "trace.json")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_disk_is_named(tmp_path: Path) -> None:
    (tmp_path / "trace.json").symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device"):
        export_trace(Profiler(None), tmp_path / "trace.json")
