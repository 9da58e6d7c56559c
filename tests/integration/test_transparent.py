"""Packages, archives and broken surroundings: `stepscope run` ends as the program would.

`test_unusual_scripts.py` has scripts.
"""

import os
import shutil
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

RUN = [sys.executable, "-m", "stepscope", "run"]


@dataclass
class Outcome:
    """What a script did."""

    code: int
    out: str
    err: str
    files: dict[str, bytes]


def outcome(command: list[str], folder: Path) -> Outcome:
    """Run a command in a folder made afresh."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    done = subprocess.run(
        command,
        cwd=folder,
        capture_output=True,
        timeout=60,
        check=False,
        input=b"typed in",
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    files = {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".stepscope"
    }
    return Outcome(done.returncode, done.stdout.decode(), own_lines_removed(done.stderr), files)


def own_lines_removed(stderr: bytes) -> str:
    """A line of ours may follow one that the script did not end."""
    lines = stderr.decode("utf-8", "surrogateescape").splitlines(True)
    return "".join(line.partition("stepscope: ")[0] for line in lines)


def assert_same(plain: Outcome, recorded: Outcome) -> None:
    assert recorded.code == plain.code, recorded.err
    assert recorded.out == plain.out
    assert recorded.err == plain.err
    assert recorded.files == plain.files


PACKAGE = {
    "__init__.py": "print('package', __name__)\n",
    "__main__.py": "import sys\nfrom tool import part\nprint(__name__, __package__, sys.argv)\n"
    "raise ValueError(part.VALUE)\n",
    "part.py": "VALUE = 3\n",
}


def write_package(folder: Path) -> None:
    folder.mkdir(parents=True)
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)


def both(tmp_path: Path, *words: str) -> tuple[Outcome, Outcome]:
    folder = tmp_path / "work"
    plain = outcome([sys.executable, *words], folder)
    return plain, outcome([*RUN, *words], folder)


def test_a_package_does_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_package(tmp_path / "library" / "tool")
    path = os.pathsep.join([str(tmp_path / "library"), os.environ.get("PYTHONPATH", "")])
    monkeypatch.setenv("PYTHONPATH", path)
    plain, recorded = both(tmp_path, "-m", "tool", "--lr", "1")
    assert plain.code == 1
    assert "['" in plain.out
    assert_same(plain, recorded)


@pytest.mark.parametrize("zipped", [False, True], ids=["folder", "zip"])
def test_a_program_in_a_folder_or_zip_does_the_same(tmp_path: Path, zipped: bool) -> None:
    folder = tmp_path / "app"
    write_package(folder / "tool")
    (folder / "__main__.py").write_text(
        "import sys\nimport tool.part\nprint(__name__, sys.argv, sys.path[0])\nsys.exit(4)\n"
    )
    target = folder
    if zipped:
        target = tmp_path / "app.pyz"
        with zipfile.ZipFile(target, "w") as archive:
            for path in folder.rglob("*.py"):
                archive.write(path, path.relative_to(folder))
    plain, recorded = both(tmp_path, str(target), "--lr", "1")
    assert plain.code == 4
    assert_same(plain, recorded)


def test_closed_streams_at_the_start_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("open('made.txt', 'w').write('x')\n")
    for redirect in ("2>&-", ">&-", "<&-", ">&- 2>&-"):
        command = " ".join([*RUN, "--overwrite", "script.py", redirect])
        done = subprocess.run(["sh", "-c", command], cwd=tmp_path, check=False, timeout=60)
        assert done.returncode == 0, redirect
        assert (tmp_path / "made.txt").read_text() == "x"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_full_stderr_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('done')\n")
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [*RUN, "script.py"],
            cwd=tmp_path,
            check=False,
            timeout=60,
            stdout=subprocess.PIPE,
            stderr=full,
            text=True,
        )
    assert (done.returncode, done.stdout) == (0, "done\n")


def test_a_folder_that_was_deleted_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "script.py").write_text(f"import shutil; shutil.rmtree({str(folder)!r})\n")
    done = subprocess.run(
        [*RUN, "script.py"], cwd=folder, check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert f"cannot write {folder / 'script.stepscope'}: the folder no longer" in done.stderr
    assert not folder.exists()


def test_a_full_disk_is_named_and_nothing_stays_behind(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(
        "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))\nprint('done')\n"
    )
    done = subprocess.run(
        [*RUN, "script.py"], cwd=tmp_path, check=False, timeout=60, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "done\n")
    assert "cannot write" in done.stderr
    assert "File too large" in done.stderr
    assert {path.name for path in tmp_path.iterdir()} == {"script.py"}


def test_a_script_that_uses_up_its_descriptors_runs_on_without_a_capture(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("""
import os, resource, torch
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
opened = []
resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))
for step in range(12):
    while step == 7:
        try:
            opened.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            break
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
""")
    done = subprocess.run(
        [*RUN, "script.py"], cwd=tmp_path, check=False, timeout=60, capture_output=True, text=True
    )
    assert done.returncode == 0
    assert not (tmp_path / "script.stepscope").exists()
    refusal = f"cannot write {tmp_path / 'script.stepscope'}: Too many open files (`ulimit -n`"
    assert done.stderr.count(refusal) == 1
