"""Why the measuring process did not start: it takes too long, or it cannot."""

import os
from contextlib import closing
from pathlib import Path

import pytest

from stepscope.errors import BatchError
from stepscope.models.batch_size import worker_process
from stepscope.models.batch_size.worker_process import Worker

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is no such shell")


@pytest.mark.main
@pytest.mark.parametrize(
    ("program", "message"),
    [
        ("exec sleep 60", "did not start stepscope's measuring process within 0.2 s; try again"),
        ("exit 1", "cannot start stepscope's measuring process: it needs Python 3.10 or later"),
        ('echo \'{"failed": "OSError: no libtorch"}\'', "process: OSError: no libtorch"),
        ("echo", "cannot start stepscope's measuring process: it needs Python 3.10 or later"),
    ],
)
def test_the_reason_is_given(
    program: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{program}\n")
    python.chmod(0o755)
    if "sleep" in program:
        monkeypatch.setattr(worker_process, "_START_S", 0.2)
    with closing(Worker(str(python))) as worker, pytest.raises(BatchError, match=message):
        worker.start()
