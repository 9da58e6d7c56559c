"""Scripts that destroy, overwrite and scatter: measured, and their project is as it was."""

from __future__ import annotations

import hashlib
import os
import stat
import textwrap
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from stepscope.base.scratch import COPY, OVERLAY, Scratch, overlay_works, plan_scratch
from stepscope.base.scratch.write_protection import can_protect
from stepscope.models.batch_size.entry import open_entry
from stepscope.models.batch_size.worker_process import Worker
from stepscope.record.batch_size.request import Effort

EFFORT = Effort(warmup=1, memory=1, least=2, most=3, seconds=0.0)
TRAIN = """
import torch
from torch.utils.data import DataLoader, TensorDataset

model = torch.nn.Linear(4, 4)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(4096, 4)), batch_size=8):
    model(x).sum().backward()
    optimizer.step()
"""
# What each script begins with. {project} is the project's path, {data} a folder that a link in it
# leads to.
HARMFUL = {
    "removes an old run": "import shutil; shutil.rmtree('runs/old')",
    "removes its output folder": "import shutil; shutil.rmtree('runs', ignore_errors=True)",
    "overwrites a checkpoint": "import torch; torch.save([1], 'runs/old/model.pt')",
    "writes logs": "open('train.log', 'w').write('step 1')",
    "appends to a file": "open('notes.txt', 'a').write('more')",
    "changes folder": "import os; os.chdir('runs'); open('here.txt', 'w').write('x')",
    "writes by __file__": "import pathlib; pathlib.Path(__file__).with_name('new').write_text('x')",
    "uses sqlite": """
        import sqlite3
        with sqlite3.connect('results.db') as db: db.execute('delete from results')
        """,
    "writes through mmap": """
        import mmap
        with open('notes.txt', 'r+b') as file:
            with mmap.mmap(file.fileno(), 0) as view: view[0:3] = b'XYZ'
        """,
    "maps with numpy": """
        import numpy
        numpy.memmap('array.bin', dtype='u1', mode='r+', shape=(8,))[:] = 255
        """,
    "calls programs": """
        import subprocess
        subprocess.run('rm -rf runs/old; echo x > shell.txt', shell=True)
        """,
    "removes its own folder": """
        import pathlib, shutil
        shutil.rmtree(pathlib.Path(__file__).parent, ignore_errors=True)
        """,
    "renames": "import os; os.rename('notes.txt', 'old_notes.txt')",
    "writes through a link": "open('shortcut.txt', 'w').write('x')",
    "links a file": "import os; os.link('notes.txt', 'hard'); open('hard', 'a').write('x')",
    "changes modes": "import os; os.chmod('notes.txt', 0o600)",
    "truncates": "import os; os.truncate('notes.txt', 0)",
    "imports what writes": "import helper",
    "leaves a child behind": """
        import os
        if os.fork() == 0:
            open('child.txt', 'w').write('x'); os._exit(0)
        os.wait()
        """,
    "removes by absolute path": "import shutil; shutil.rmtree('{project}/runs/old')",
    "writes by absolute path": "open('{project}/notes.txt', 'w').write('x')",
    "saves by absolute path": "import torch; torch.save([1], '{project}/runs/old/model.pt')",
    "shells by absolute path": "import os; os.system('rm -rf {project}/runs; touch {project}/x')",
    "writes to linked data": "open('data/set.txt', 'w').write('x')",
    "removes linked data": "import shutil; shutil.rmtree('data/', ignore_errors=True)",
}
# A copy lies elsewhere: what names the project itself, or leaves it by a link, is refused there.
REFUSED_IN_A_COPY = {
    "removes by absolute path",
    "writes by absolute path",
    "saves by absolute path",
    "writes to linked data",
    "removes linked data",
}
# In a copy most means write to it as in an overlay: these stand for them in the second tier.
MEANS_IN_A_COPY = {"overwrites a checkpoint", "uses sqlite", "calls programs", "removes its own folder"}
CASES = [
    *((harm, OVERLAY) for harm in HARMFUL),
    *((harm, COPY) for harm in HARMFUL if harm in REFUSED_IN_A_COPY | MEANS_IN_A_COPY),
    *(
        pytest.param(harm, COPY, marks=pytest.mark.full)
        for harm in HARMFUL
        if harm not in REFUSED_IN_A_COPY | MEANS_IN_A_COPY
    ),
]


def snapshot(*folders: Path) -> dict[str, Any]:
    """Names, kinds, modes and contents of all there is."""
    found = {}
    for path in sorted(path for folder in folders for path in [folder, *folder.rglob("*")]):
        state = path.lstat()
        content: Any = None
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        found[str(path)] = (stat.filemode(state.st_mode), content)
    return found


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with an old run, data elsewhere, and a file that a link leads to."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "set.txt").write_text("1 2 3")
    project = tmp_path / "pröject, a:b"
    (project / "runs/old").mkdir(parents=True)
    (project / ".git").mkdir()
    (project / "runs/old/model.pt").write_bytes(bytes(range(256)))
    (project / "notes.txt").write_text("notes of mine\n")
    (project / "array.bin").write_bytes(bytes(8))
    (project / "helper.py").write_text("open('from_helper.txt', 'w').write('x')\n")
    (project / "data").symlink_to(data)
    (project / "shortcut.txt").symlink_to("notes.txt")
    make_database(project / "results.db")
    return project


def make_database(path: Path) -> None:
    import sqlite3

    with sqlite3.connect(path) as database:
        database.execute("create table results (loss)")
        database.execute("insert into results values (1)")


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with closing(Worker()) as worker:
        yield worker


def write_script(project: Path, beginning: str) -> Path:
    script = project / "train.py"
    beginning = textwrap.dedent(beginning).replace("{project}", str(project))
    script.write_text(beginning + "\n" + TRAIN, encoding="utf-8")
    return script


def plan(script: Path, method: str) -> Scratch:
    if method == COPY and not can_protect():
        pytest.skip("no Landlock here")
    scratch = plan_scratch(str(script), str(script.parent), method=method)
    assert scratch.method == method
    return scratch


def needs(method: str, folder: Path) -> None:
    if method == OVERLAY and not overlay_works(Scratch(OVERLAY, (str(folder),), store="/var/tmp")):
        pytest.skip("no overlays here")


def run(worker: Worker, script: Path, scratch: Scratch | None) -> dict[str, Any]:
    from dataclasses import replace

    entry = replace(open_entry(script, folder=script.parent), scratch=scratch)
    return worker.run(entry.request(8, effort=EFFORT, timeout_s=120.0)).facts


@pytest.mark.parametrize(("harm", "method"), CASES)
def test_a_harmful_script_leaves_its_project_as_it_was(
    worker: Worker, project: Path, tmp_path: Path, harm: str, method: str
) -> None:
    needs(method, project)
    script = write_script(project, HARMFUL[harm])
    before = snapshot(project, tmp_path / "data")
    facts = run(worker, script, plan(script, method))
    assert snapshot(project, tmp_path / "data") == before
    if method == COPY and harm in REFUSED_IN_A_COPY:
        assert facts["outcome"] == "failed", facts
        assert facts["error"]["type"] in ("PermissionError", "RuntimeError"), facts
        assert facts["error"]["file"] == str(script)
    else:
        assert facts["outcome"] == "measured", facts


def test_in_place_it_does_happen(worker: Worker, project: Path) -> None:
    script = write_script(project, HARMFUL["removes an old run"])
    scratch = plan_scratch(str(script), str(project), in_place=True)
    assert run(worker, script, scratch)["outcome"] == "measured"
    assert not (project / "runs/old").exists()


@pytest.mark.parametrize("method", [OVERLAY, COPY])
def test_each_run_begins_with_the_project_as_it_is(worker: Worker, project: Path, method: str) -> None:
    needs(method, project)
    script = write_script(project, "import os; os.makedirs('runs/new')")  # fails if it exists
    scratch = plan(script, method)
    assert [run(worker, script, scratch)["outcome"] for _ in range(2)] == ["measured"] * 2


@pytest.mark.parametrize("method", [OVERLAY, COPY])
def test_changes_elsewhere_are_reported(
    worker: Worker, project: Path, method: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    needs(method, project)
    elsewhere = Path("/var/tmp") / f"stepscope-test-{os.getpid()}"
    script = write_script(project, f"open('{elsewhere}', 'w').write('x'); open('in', 'w')")
    try:
        facts = run(worker, script, plan(script, method))
        assert elsewhere.exists()
    finally:
        elsewhere.unlink(missing_ok=True)
    assert facts["outside_writes"] == [str(elsewhere)]


@pytest.mark.parametrize("method", [OVERLAY, COPY])
def test_a_failure_names_the_line_of_the_projects_file(worker: Worker, project: Path, method: str) -> None:
    needs(method, project)
    script = write_script(project, "import broken")
    (project / "broken.py").write_text("\n\nraise ValueError('no')\n")
    error = run(worker, script, plan(script, method))["error"]
    assert (error["file"], error["line"]) == (str(project / "broken.py"), 3)


def test_nothing_temporary_is_left_behind(worker: Worker, project: Path, tmp_path: Path) -> None:
    from dataclasses import replace

    store = tmp_path / "store"
    store.mkdir()
    script = write_script(project, HARMFUL["removes an old run"])
    for method in (OVERLAY, COPY):
        needs(method, project)
        run(worker, script, replace(plan(script, method), store=str(store)))
        assert list(store.iterdir()) == []


VERIFIED = [
    "overwrites a checkpoint",
    "writes by __file__",
    "uses sqlite",
    "writes by absolute path",
    "writes to linked data",
    "calls programs",
]


def test_verify_leaves_the_project_as_it_was(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepscope.models.verify.trials import TrialRun, execute, script_scratch
    from stepscope.record.script_runner import Program

    needs(OVERLAY, project)
    monkeypatch.chdir(project)
    harm = "\n".join(textwrap.dedent(HARMFUL[name]) for name in VERIFIED)
    script = Program(str(write_script(project, harm)))
    before = snapshot(project, tmp_path / "data")
    facts = execute(TrialRun(script, 1, 2, scratch=script_scratch(script)), lambda label, line: None)
    assert len(facts["steps_ns"]) == 2
    assert snapshot(project, tmp_path / "data") == before


@pytest.mark.parametrize("method", [OVERLAY, pytest.param(COPY, marks=pytest.mark.full)])
def test_processes_that_train_together_share_one_view(
    project: Path, tmp_path: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from stepscope.models.verify.trials import TrialRun, execute
    from stepscope.record.script_runner import Program

    needs(method, project)
    monkeypatch.chdir(project)
    path = write_script(
        project,
        """
        import os, time
        if os.environ["RANK"] == "1":
            open("downloaded.txt", "w").write("x")
        while not os.path.exists("downloaded.txt"):
            time.sleep(0.01)
        """,
    )
    before = snapshot(project)
    run_ = TrialRun(Program(str(path)), 1, 2, processes=2, scratch=plan(path, method))
    assert len(execute(run_, lambda label, line: None)["steps_ns"]) == 2
    assert snapshot(project) == before
