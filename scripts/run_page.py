"""Run every command of a page in a scratch folder, in order.

    python scripts/run_page.py docs/tutorial.md --check    # each command succeeds and shows what it must
    python scripts/run_page.py docs/tutorial.md --write    # the same, and put the new outputs into the page

The comment <!-- files: examples/tutorial/train.py --> names what the folder holds at first. A
```console block holds one command after `$ ` and its output. The comment before it says what
to keep and what the output must contain: <!-- run: lines=12 must=waits for data -->; `quiet`
leaves out what goes to stderr. A ```diff block is an edit of the file named in its first line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILES = re.compile(r"<!-- files: (.*?) -->")
BLOCK = re.compile(
    r"(?:<!-- run:(?P<options>[^\n]*) -->\n)?```(?P<kind>console|diff)\n(?P<body>.*?)```\n", re.DOTALL
)


Run = Callable[[str, Path, dict[str, str], int], "subprocess.CompletedProcess[str]"]


def in_shell(
    command: str, folder: Path, environment: dict[str, str], stderr: int
) -> subprocess.CompletedProcess[str]:
    """Run a command as a reader does."""
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env=environment,
        text=True,
        check=False,
        stdout=subprocess.PIPE,
        stderr=stderr,
    )


def run_page(page: str, folder: Path, run: Run = in_shell) -> str:
    """Run the commands and edits of a page.

    Args:
        page: the text of a page.
        folder: where the commands run; it gets the first version of the script.
        run: runs a command in a folder, in an environment; where its stderr goes, as for `subprocess`.

    Returns:
        The page with the outputs of this run.

    Raises:
        AssertionError: a command fails, or does not show what it must.
    """
    for pattern in " ".join(FILES.findall(page)).split():
        for path in ROOT.glob(pattern):
            shutil.copy(path, folder)

    def run_block(match: re.Match[str]) -> str:
        if match["kind"] == "diff":
            apply_edit(match["body"], folder)
            return match[0]
        output = run_command(match["body"], match["options"] or "", folder, run)
        return match[0].replace(match["body"], output)

    return BLOCK.sub(run_block, page)


def run_command(body: str, options: str, folder: Path, run: Run) -> str:
    """Run the command of a block; its text with the new output."""
    command = body.splitlines()[0].removeprefix("$ ")
    # A separate cache: a calibration of this machine under load would change the outputs.
    cache = str(folder / ".cache")
    environment = {**os.environ, "COLUMNS": "100", "NO_COLOR": "1", "STEPSCOPE_CACHE": cache}
    stderr = subprocess.PIPE if "quiet" in options else subprocess.STDOUT
    done = run(command, folder, environment, stderr)
    assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{done.stdout}{done.stderr}"
    must = options.partition("must=")[2].strip()
    assert must in done.stdout, f"{command}: {must!r} is not in\n{done.stdout}"
    text = done.stdout.rstrip().replace(str(folder.resolve()), "/home/me/tutorial")
    text = text.replace(f"{folder.name}/", "tutorial/")  # the last folder of a path alone
    lines = [line.rstrip() for line in text.splitlines()]
    limit = re.search(r"lines=(\d+)", options)
    if limit and len(lines) > int(limit[1]):
        lines = [*lines[: int(limit[1])], "…"]
    return "\n".join([f"$ {command}", *lines, ""])


def apply_edit(body: str, folder: Path) -> None:
    """Replace each `-` line of a diff by the `+` lines after it."""
    name, *lines = body.splitlines()
    file = folder / name.removeprefix("# ")
    before = "\n".join(line[1:] for line in lines if line[0] in " -")
    after = "\n".join(line[1:] for line in lines if line[0] in " +")
    text = file.read_text()
    assert text.count(before) == 1, f"{name}: the edit does not fit\n{before}"
    file.write_text(text.replace(before, after))


def main() -> None:
    """Run a page; with --write, update it."""
    path = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        page = run_page(path.read_text("utf-8"), Path(folder))
    if "--write" in sys.argv:
        path.write_text(page, "utf-8")


if __name__ == "__main__":
    main()
