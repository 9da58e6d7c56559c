"""Which tests run when, and what each file of tests costs.

Three tiers. `./scripts/test unit` runs the unit tests but for those that are marked `main`: they
start processes, or take a second and more. `./scripts/test` adds these, one process test per
behavior, the browser tasks and the pages of documentation. `./scripts/test all` adds what is marked
`full`: whole families of generated cases, every unusual script in every mode, hostile files, kills,
growth, the laboratory and other editors. Of a family with a parameter `seed`, the first four are in
every tier, and the others are `full`. `.ci/run` takes the second tier, and from the third the files
below whose paths the change touches: of a parametrized test each third case, of a family that is
marked `full(every=N)` each N-th.
"""

from __future__ import annotations

import gc
import os
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterable
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from _pytest.doctest import DoctestModule

ROOT = Path(__file__).parents[1]

# Files of the third tier, with the paths whose change lets `.ci/run` run them. A test that is
# marked `full` in a file of an earlier tier runs if the file or its package changed.
_READERS = ("src/stepscope/read/", "src/stepscope/trace/", "src/stepscope/base/", "tests/fuzz/")
_RECORDER = ("src/stepscope/record/", "src/stepscope/base/unfinished_files.py")
_COLLECTOR = ("src/stepscope/record/contexts/", "src/stepscope/record/native/")
_EDITOR = ("src/stepscope/faces/editor/", "src/stepscope/models/batch_size/", "editors/")
_MODULES = ("src/stepscope/facts/annotate/modules/",)
_LABORATORY = ("benchmarks/",)
FULL: dict[str, tuple[str, ...]] = {
    # hostile files and families of generated cases
    "tests/fuzz/*": _READERS,
    "tests/corpus/*": ("src/stepscope/analyze/", "tests/corpus/"),
    "tests/integration/test_growth.py": (*_READERS, "src/stepscope/facts/", "src/stepscope/graph/"),
    "tests/integration/test_matching_other_trees.py": _MODULES,
    "tests/integration/test_matching_accuracy.py": _MODULES,
    "tests/integration/test_flops_against_*.py": ("src/stepscope/facts/roofline/",),
    # every unusual script, kills, full disks, floods
    "tests/integration/test_unusual_scripts.py": _RECORDER,
    "tests/integration/test_kills.py": (*_RECORDER, "src/stepscope/faces/terminal/"),
    "tests/integration/test_full_disk.py": (*_RECORDER, "src/stepscope/faces/terminal/"),
    "tests/integration/test_bounded_logs.py": ("src/stepscope/faces/", "src/stepscope/base/"),
    "tests/integration/test_batch_killed.py": ("src/stepscope/models/batch_size/",),
    "tests/integration/test_sampling.py": _COLLECTOR,
    "tests/integration/test_contexts_transparency.py": _COLLECTOR,
    "tests/integration/test_contexts_stalls.py": _COLLECTOR,
    # the laboratory
    "tests/gpu/*": ("benchmarks/gpu/", "src/stepscope/models/whatif/", "src/stepscope/graph/"),
    "tests/integration/test_benchmarks.py": _LABORATORY,
    "tests/integration/test_gpu_kit.py": ("benchmarks/gpu/",),
    "tests/integration/test_gpu_results.py": ("benchmarks/gpu/",),
    "tests/integration/test_networked_references.py": ("benchmarks/networked/",),
    "tests/integration/test_slow_examples.py": ("examples/slow/", "src/stepscope/analyze/rules/"),
    "tests/browser/test_view_benchmark.py": _LABORATORY,
    # every command of the skill, which runs, calibrates and verifies a script
    "tests/integration/test_skill.py": ("src/stepscope/faces/assistant/", "src/stepscope/faces/terminal/"),
    # other editors, another protocol, a cluster
    "tests/editor/test_other_editors.py": _EDITOR,
    "tests/editor/test_vscode_yaml.py": _EDITOR,
    "tests/integration/test_lsp_over_tcp.py": _EDITOR,
    "tests/integration/test_lsp_leaves.py": _EDITOR,
    "tests/integration/test_ranks_on_dask.py": ("src/stepscope/models/ranks/",),
}
_EVERY = 3  # case of a parametrized test in these files; 11,000 tests take 20 minutes
_SEEDS = 4  # of a family, in every tier; chosen, so that the unit tests take two minutes
_EVERY_SEED = 8  # of the others, where the change touches them; as in `family`
_LISTED_CPU_S = 3.0  # a table of all files would be too long to read; these are nine tenths of it


def family(cases: Iterable[Any], main: int, every: int = 8, unit: int | None = None) -> list[Any]:
    """Cases of a generated family: of the first `main` the first `unit`, by default all, are in every tier.

    The other of these are from the second on, and the others `full(every)`.
    """
    marks = [*[()] * (main if unit is None else unit)]
    marks += [pytest.mark.main] * (main - len(marks))
    others = pytest.mark.full(every=every)
    return [
        pytest.param(case, marks=marks[number] if number < main else others)
        for number, case in enumerate(cases)
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--tier`, and `--changed-since` for the tier `changed`."""
    group = parser.getgroup("tiers")
    meaning = "main: none marked full; unit: nor main; changed: and those that --changed-since touches"
    group.addoption("--tier", choices=("unit", "main", "changed", "all"), default="main", help=meaning)
    group.addoption("--changed-since", metavar="REV", default="HEAD")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker, and measure CPU time."""
    meaning = "full(every=1): runs in ./scripts/test all; where its paths change, every n-th case does"
    config.addinivalue_line("markers", meaning)
    config.addinivalue_line(
        "markers", "main: not in ./scripts/test unit, as it starts processes or takes seconds"
    )
    config.pluginmanager.register(CpuTimes(config), "cpu-times")


@pytest.hookimpl(wrapper=True)
def pytest_collect_file(file_path: Path) -> Any:
    """Import no module for the examples in its docstrings where it has none.

    `--doctest-modules` also imports what lies next to the tests, such as scripts that import JAX.
    """
    found = yield
    if any(isinstance(one, DoctestModule) for one in found) and b">>> " not in file_path.read_bytes():
        return [one for one in found if not isinstance(one, DoctestModule)]
    return found


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Any:
    """Look for no garbage among tests and modules, which stay until the end."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect what the tier leaves out; a file that is named on the command line runs whole."""
    drawn: dict[str, list[Any]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("full"):
            continue
        if _matches(_path(item), tuple(FULL)):
            item.add_marker(pytest.mark.full(every=_EVERY))
        elif _is_later_seed(item, drawn):
            item.add_marker(pytest.mark.full(every=_EVERY_SEED))
    tier = config.getoption("--tier")
    if tier == "all":
        return
    changed = _changed_paths(config.getoption("--changed-since")) if tier == "changed" else ()
    named = {Path(argument.partition("::")[0]).resolve() for argument in config.args}
    runs: list[pytest.Item] = []
    seen: Counter[str] = Counter()
    left: list[pytest.Item] = []
    for item in items:
        full = item.get_closest_marker("full")
        chosen = full is None or (
            tier == "changed" and _is_touched(_path(item), changed) and _is_sampled(item, full, seen)
        )
        chosen = chosen and not (tier == "unit" and item.get_closest_marker("main"))
        (runs if chosen or item.path.resolve() in named else left).append(item)
    items[:] = runs
    config.hook.pytest_deselected(items=left)


def _is_later_seed(item: pytest.Item, drawn: dict[str, list[Any]]) -> bool:
    """Whether the first seeds of its family come before that of a case."""
    call = getattr(item, "callspec", None)
    if call is None or "seed" not in call.params:
        return False
    seeds = drawn[item.nodeid.partition("[")[0]]
    if call.params["seed"] not in seeds:
        seeds.append(call.params["seed"])
    return seeds.index(call.params["seed"]) >= _SEEDS


def _path(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT).as_posix() if item.path.is_relative_to(ROOT) else ""


@cache
def _is_touched(test: str, changed: tuple[str, ...]) -> bool:
    """Whether a change touches what a test of the third tier watches."""
    watched = [path for pattern, paths in FULL.items() if fnmatch(test, pattern) for path in paths]
    package = test.removeprefix("tests/unit/").rpartition("/")[0]
    watched = [*watched, test] if watched else [test, f"src/stepscope/{package}/"]
    return any(path.startswith(tuple(watched)) for path in changed)


def _is_sampled(item: pytest.Item, full: pytest.Mark, seen: Counter[str]) -> bool:
    """Whether a case of a family is one of those that stand for it."""
    family = item.nodeid.partition("[")[0]
    seen[family] += 1
    return (seen[family] - 1) % full.kwargs.get("every", 1) == 0


@cache
def _matches(path: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch(path, pattern) for pattern in patterns)


def _changed_paths(base: str) -> tuple[str, ...]:
    command = ["git", "diff", "--name-only", base]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return tuple(listed.splitlines())


class CpuTimes:
    """CPU seconds of each file of tests, children included, in all workers of pytest-xdist."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._seconds: dict[str, float] = defaultdict(float)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        """Add what a test and its fixtures took to its file."""
        before = sum(os.times()[:4])
        try:
            return (yield)
        finally:
            self._seconds[_path(item)] += sum(os.times()[:4]) - before

    def pytest_sessionfinish(self) -> None:
        """A worker hands its times to the process that prints them."""
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput["cpu_s"] = dict(self._seconds)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Add the times of a worker."""
        for path, seconds in getattr(node, "workeroutput", {}).get("cpu_s", {}).items():
            self._seconds[path] += seconds

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the files that take longest."""
        dear = {path: taken for path, taken in self._seconds.items() if taken >= _LISTED_CPU_S}
        if not dear:
            return
        total = sum(self._seconds.values())
        terminalreporter.section(f"CPU seconds by file ({total:.0f} in all)")
        for path, seconds in sorted(dear.items(), key=lambda pair: -pair[1]):
            terminalreporter.write_line(f"{seconds:8.1f}  {path}")
