"""`stepscope ranks --scheduler`: the same result as without, also if a worker is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stepscope.faces.terminal.commands import stepscope as command

pytest.importorskip("distributed")
sys.path.append(str(Path(__file__).parents[1] / "unit" / "graph"))
from pipelined_job import Job

CLUSTER = """
import sys
from distributed import LocalCluster

def main():
    count = int(sys.argv[1])
    with LocalCluster(count, threads_per_worker=1, dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()

if __name__ == "__main__":
    main()
"""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    script = tmp_path_factory.mktemp("dask") / "cluster.py"
    script.write_text(CLUSTER)
    with subprocess.Popen(
        [sys.executable, str(script), "2"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdin
        yield process.stdout.readline().strip()
        process.stdin.close()


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Job(replicas=1, compute_us=lambda rank, batch: 2500.0 if rank == 1 else 1000.0).write(
        tmp_path_factory.mktemp("job") / "job"
    )
    (folder / "rank9.json").write_text('{"traceEvents": []}')
    return folder


def ranks(folder: Path, *options: str) -> Result:
    return CliRunner().invoke(command, ["ranks", str(folder), "--json", *options])


def test_the_result_is_the_same_byte_for_byte(cluster: str, job: Path) -> None:
    here, there = ranks(job), ranks(job, "--scheduler", cluster)
    assert '"sentence": "Rank 1' in here.stdout
    assert there.stdout == here.stdout


def test_a_worker_killed_in_the_middle_changes_nothing(cluster: str, job: Path) -> None:
    """The worker is killed when its first file is done, before the others can be."""
    from distributed import Client

    from stepscope.models.ranks import sketch_files
    from stepscope.models.ranks.files import files_at
    from stepscope.models.ranks.map_ranks import on_dask

    with Client(cluster) as client:
        victims = [one["pid"] for one in client.run(lambda: {"pid": os.getpid()}).values()][:1]

    def kill(file: Path) -> None:
        while victims:
            os.kill(victims.pop(), signal.SIGKILL)

    files = files_at(job)
    assert sketch_files(files, engine=partial(on_dask, cluster), finished=kill) == sketch_files(files)
    assert not victims


def test_a_file_that_no_worker_has_is_a_row(cluster: str, job: Path) -> None:
    from stepscope.models.ranks import sketch_files
    from stepscope.models.ranks.files import RankFile
    from stepscope.models.ranks.map_ranks import on_dask

    missing = job / "rank77.json"
    (result,) = sketch_files([RankFile(str(missing), 1, 0)], engine=partial(on_dask, cluster))
    assert result.error.startswith(f"{missing}: not found on a worker")


def test_no_scheduler_is_one_line(job: Path) -> None:
    result = ranks(job, "--scheduler", "nothing://here")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "cannot reach a Dask scheduler at nothing://here" in result.stderr


def test_another_version_is_one_line(cluster: str, job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stepscope.models.ranks.map_ranks.__version__", "9.9")
    result = ranks(job, "--scheduler", cluster)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "has stepscope 0.1.0, this is 9.9; install the same version on both" in result.stderr


def test_a_worker_that_cannot_import_stepscope_is_one_line() -> None:
    from stepscope.errors import EngineError
    from stepscope.models.ranks.map_ranks import _check_workers

    class Client:
        def run(self, version: object, on_error: str) -> dict[str, Exception]:
            return {"tcp://w:1": ModuleNotFoundError("No module named 'stepscope'")}

    with pytest.raises(EngineError, match="worker tcp://w:1 cannot import stepscope"):
        _check_workers(Client(), "tcp://s:1")
