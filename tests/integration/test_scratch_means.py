"""Scripts that write or delete by different means: what is held back, and what is named."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from stepscope.base.scratch import COPY, OVERLAY, Scratch, overlay_works, plan_scratch
from stepscope.base.scratch.write_protection import can_protect

METHODS = [OVERLAY, COPY]
# What a script does to `path`, a file that exists, in `folder`: by functions of Python, here or in a
# forked child, each of which is named when it changes a file outside of the project.
NAMED = {
    "open": "open(path, 'a').write('x')",
    "pathlib": "pathlib.Path(path).write_text('x')",
    "os.open": "os.write(os.open(path, os.O_WRONLY | os.O_TRUNC), b'x')",
    "remove": "os.remove(path)",
    "remove by dir_fd": "os.remove('file', dir_fd=os.open(folder, os.O_RDONLY))",
    "mkdir by dir_fd": "os.mkdir('new', dir_fd=os.open(folder, os.O_RDONLY))",
    "rename by dir_fd": """
        fd = os.open(folder, os.O_RDONLY)
        os.rename('file', 'b', src_dir_fd=fd, dst_dir_fd=fd)
        """,
    "link by dir_fd": "os.symlink('file', 'link', dir_fd=os.open(folder, os.O_RDONLY))",
    "rmtree": "shutil.rmtree(folder)",
    "truncate": "os.truncate(path, 0)",
    "chmod": "os.chmod(path, 0o600)",
    "sqlite": "db = sqlite3.connect(folder + '/new.db'); db.execute('create table t (x)'); db.commit()",
    "sqlite by URI": "sqlite3.connect(f'file:{path}.db?mode=rwc', uri=True).execute('create table t (x)')",
    "chmod by descriptor": "os.fchmod(os.open(path, os.O_RDONLY), 0o600)",
    "chown by descriptor": "os.chown(os.open(path, os.O_RDONLY), -1, os.getgid())",
    "times by descriptor": "os.utime(os.open(path, os.O_RDONLY), (1, 1))",
    "attribute by descriptor": "os.setxattr(os.open(path, os.O_RDONLY), 'user.a', b'x')",
    "UNIX socket": "socket.socket(socket.AF_UNIX).bind(folder + '/new')",
    "memory map": "mmap.mmap(open(path, 'r+b').fileno(), 0)[0:1] = b'X'",
    "sendfile": "os.sendfile(os.open(path, os.O_WRONLY), os.open('/proc/version', os.O_RDONLY), 0, 2)",
    "copy_file_range": """
        new = os.open(folder + '/new', os.O_RDWR | os.O_CREAT); os.write(new, b'xx')
        os.copy_file_range(new, os.open(path, os.O_WRONLY), 2, 0, 0)
        """,
    "hard link": "os.link(path, folder + '/new'); open(folder + '/new', 'w').write('x')",
    "descriptor by /proc": "open(f'/proc/self/fd/{os.open(path, os.O_PATH)}', 'w').write('x')",
    "folder by /proc": "os.chdir(folder); open('/proc/self/cwd/file', 'w').write('x')",
    "descriptor by a socket": """
        a, b = socket.socketpair(); socket.send_fds(a, [b'x'], [os.open(path, os.O_WRONLY)])
        os.write(socket.recv_fds(b, 1, 1)[1][0], b'x')
        """,
    "forked child": "os.fork() or (os.remove(path), os._exit(0)); os.wait()",
    "multiprocessing": """
        process = multiprocessing.get_context('fork').Process(target=os.remove, args=[path])
        process.start(); process.join()
        """,
}
# By C++, other programs, and processes that outlive the script: `Scratch.sentence` says beforehand
# that these are not listed.
UNNAMED = {
    "shell that writes": "os.system(f'echo x >> {path}')",
    "shell that removes": "subprocess.run(['rm', '-rf', folder])",
    "C library": "ctypes.CDLL(None).unlink(path.encode())",
    "named pipe": "os.mkfifo(f'{folder}/new')",
    "node": "os.mknod(f'{folder}/new')",
    "sqlite attach": "sqlite3.connect('').execute(f'vacuum into \"{folder}/new.db\"')",
    "torch.save": "import torch; torch.save([1], path)",
    "storage of torch": "import torch; torch.UntypedStorage.from_file(path, True, 1).fill_(7)",
    "posix_spawn": "os.waitpid(os.posix_spawn('/bin/rm', ['rm', path], os.environ), 0)",
    "exchange by a system call": """
        new = folder + '/../new'; pathlib.Path(new).touch()
        ctypes.CDLL(None).renameat2(-100, path.encode(), -100, new.encode(), 2)
        """,
    "attribute by the C library": "ctypes.CDLL(None).setxattr(path.encode(), b'user.a', b'x', 1, 0)",
    "daemon behind a socket": """
        code = 'import os, socket; s = socket.socket(1); s.bind(os.sys.argv[1]); s.listen(); '
        code += 'print(1, flush=1); os.remove(s.accept()[0].recv(999)); print(2)'
        name = os.path.join(os.path.dirname(ready), 's')
        daemon = subprocess.Popen([sys.executable, '-c', code, name], stdout=subprocess.PIPE)
        daemon.stdout.readline(); s = socket.socket(1); s.connect(name); s.send(path.encode()); daemon.wait()
        """,
    "os.open by dir_fd": "os.open('file', os.O_WRONLY | os.O_TRUNC, dir_fd=os.open(folder, os.O_RDONLY))",
    "daemon": """
        subprocess.Popen(['sh', '-c', f'(sleep 0.05; rm {path}; touch {ready}) &'], start_new_session=True)
        while not os.path.exists(ready): time.sleep(0.01)
        """,
}
# Ways around an overlay, to the project's own files.
ESCAPES = {
    "umount": "os.system(f'umount -l {root}'); os.system(f'rm {path}')",
    "umount by the C library": "ctypes.CDLL(None).umount2(root.encode(), 2); os.remove(path)",
    "nsenter": "os.system(f'nsenter -t 1 -m rm {path}')",
    "nsenter to the parent": "os.system(f'nsenter -t {parent} -m rm {path}')",
    "root of another process": "os.system(f'rm /proc/1/root{path} /proc/{parent}/root{path}')",
    "namespace within": "os.system(f'unshare -Urm sh -c \"umount -l {root}; rm {path}\"')",
    "git worktree": "os.system('git worktree add -q new; git -C {root} worktree add -q {root}/other')",
    "git commit": "os.system('git commit -q --allow-empty -m x; git tag t; git gc -q')",
    "git folder": "shutil.rmtree(git)",
    "git program": "os.system('git --git-dir={git} branch other; git --git-dir={git} config a.b c')",
}
DRIVER = """
import ctypes, json, mmap, multiprocessing, os, pathlib, shutil, socket, sqlite3, subprocess, sys, time
sys.path.insert(0, {sources!r})
from stepscope.base.scratch import Scratch, enter, relocated
path, folder, root, git, ready, parent = {values!r}
watch = enter(Scratch.from_json({scratch!r}), {store!r})
os.chdir(relocated(root))
try:
    exec({code!r})
except (OSError, RuntimeError, sqlite3.Error) as error:
    print(error, file=sys.stderr)
print(json.dumps(watch.stop()))
"""
CASES = [
    # What happens outside is heard of by the same means with both methods.
    *(("outside", means, OVERLAY) for means in [*NAMED, *UNNAMED]),
    *(pytest.param("outside", means, COPY, marks=pytest.mark.full) for means in [*NAMED, *UNNAMED]),
    *(
        pytest.param("project", means, method, marks=pytest.mark.full)
        for means in NAMED
        for method in METHODS
    ),
    *(("project", means, method) for means in UNNAMED for method in METHODS),
    *(("project", means, method) for means in ESCAPES for method in METHODS),
]


def contents(*folders: Path) -> dict[str, bytes | None]:
    """All there is, byte by byte; access times apart."""
    paths = (path for folder in folders for path in sorted(folder.rglob("*")))
    return {str(path): path.read_bytes() if path.is_file() else None for path in paths}


@pytest.fixture
def outside() -> Iterator[Path]:
    folder = Path("/var/tmp") / f"stepscope-outside-{os.getpid()}"
    (folder / "data").mkdir(parents=True)
    (folder / "data/file").write_text("1")
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["repository", "worktree"])
def project(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A project that is a Git repository, or a linked worktree of one; commands run in a subfolder."""
    main = tmp_path / "main"
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "init", "-q", main], check=True)
    (main / "data").mkdir()
    (main / "data/file").write_text("1")
    subprocess.run([*git, "add", "."], cwd=main, check=True)
    subprocess.run([*git, "commit", "-qm", "first"], cwd=main, check=True)
    if request.param == "repository":
        return main
    subprocess.run(["git", "worktree", "add", "-q", "../linked"], cwd=main, check=True)
    return tmp_path / "linked"


def run(project: Path, target: Path, code: str, method: str, tmp_path: Path) -> tuple[list[str], Scratch]:
    scratch = plan_scratch(str(project / "train.py"), str(project), method=method)
    with scratch.new_store() as store:
        values = (
            str(target / "data/file"), str(target / "data"), str(project), str(tmp_path / "main/.git"),
            f"{store}/ready", os.getpid(),
        )  # fmt: skip
        sources = str(Path(plan_scratch.__code__.co_filename).parents[3])
        driver = DRIVER.format(
            sources=sources, values=values, scratch=scratch.to_json(), store=store, code=textwrap.dedent(code)
        )
        done = subprocess.run([sys.executable, "-c", driver], capture_output=True, text=True, cwd=project)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), scratch


@pytest.mark.parametrize("project", ["repository"], indirect=True)
@pytest.mark.parametrize(("place", "means", "method"), CASES)
def test_the_project_stays_and_changes_outside_are_named_or_said_not_to_be(
    place: str, means: str, method: str, project: Path, outside: Path, tmp_path: Path
) -> None:
    check_means(place, means, method, project, outside, tmp_path)


@pytest.mark.parametrize("project", ["worktree"], indirect=True)
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("means", [means for means in ESCAPES if "git" in means])
def test_the_repository_of_a_linked_worktree_stays(
    means: str, method: str, project: Path, outside: Path, tmp_path: Path
) -> None:
    check_means("project", means, method, project, outside, tmp_path)


def check_means(place: str, means: str, method: str, project: Path, outside: Path, tmp_path: Path) -> None:
    if method == OVERLAY and not overlay_works(Scratch(OVERLAY, (str(project),), store="/var/tmp")):
        pytest.skip("no overlays here")
    if method == COPY and not can_protect():
        pytest.skip("no Landlock here")
    before, there = contents(tmp_path), contents(outside)
    target = project if place == "project" else outside
    code = {**NAMED, **UNNAMED, **ESCAPES}[means]
    named, scratch = run(project, target, code, method, tmp_path)
    assert contents(tmp_path) == before
    if place == "outside" and means in NAMED:
        assert any(str(outside) in path for path in named)
    if contents(outside) != there and not named:
        assert "C++ code and other programs are not listed" in scratch.sentence
