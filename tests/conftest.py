"""What all tests share."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from hypothesis import settings

from stepscope.base.compiled.build import LIBRARY, build
from stepscope.base.compiled.library import function
from stepscope.errors import StepscopeError
from stepscope.facts.load import open as open_trace
from stepscope.trace.trace import Trace

sys.path.insert(0, str(Path(__file__).parent))  # for `oracles`
sys.path.append(str(Path(__file__).parents[1] / "scripts"))  # for the generators of pages

# What pytest rewrote of the tests is kept for the next of its processes, also where the environment
# forbids bytecode: half of the time that it needs to collect.
sys.dont_write_bytecode = False

pytest_plugins = ["tiers"]  # which tests run when

# Examples that never differ from run to run, and no deadline: the machine may be busy.
settings.register_profile("stepscope", deadline=None, derandomize=True, max_examples=60)
settings.register_profile("unit", settings.get_profile("stepscope"), max_examples=20)
settings.load_profile("stepscope")

# Two workers of pytest share two cores: with a thread for each core, they wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Inductor believes what the processor says of itself: to try it takes seconds in each new cache.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# A shell starts what runs in its background deaf to Ctrl-C, and so would be all that tests start.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

_BESIDE_CHECKOUT = Path(__file__).parents[2] / "shared" / "traces"


_WATCHES_PROCESSES = ("integration", "browser", "editor")


def pytest_configure(config: pytest.Config) -> None:
    """Choose how many examples; build the compiled library where it is missing or of other sources."""
    if config.getoption("--tier") == "unit":
        settings.load_profile("unit")
    if hasattr(config, "workerinput"):
        return
    try:
        function("stepscope_fingerprint")
    except StepscopeError:
        if why := build():
            pytest.exit(f"cannot build the compiled library: {why}", returncode=2)
        function.cache_clear()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run a test of live processes once more if it fails: other work may have stopped them.

    `scripts/test` lists those that needed it.
    """
    tests = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(tests) and (item.path.relative_to(tests).parts[0] in _WATCHES_PROCESSES):
            item.add_marker(pytest.mark.flaky(reruns=1))


@pytest.fixture(scope="session")
def traces() -> Path:
    """The folder of real traces; without it a test is skipped, under CI=true it fails."""
    folder = Path(os.environ.get("STEPSCOPE_TRACES") or _BESIDE_CHECKOUT)
    if not folder.is_dir():
        reason = f"no real traces at {folder}; set STEPSCOPE_TRACES to their folder"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    return folder


@pytest.fixture(scope="session")
def opened(
    traces: Path, tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config
) -> Callable[[str], Trace]:
    """Opens a real trace by its path in their folder; each is read once for all tests and workers."""
    base = tmp_path_factory.getbasetemp()
    kept = (base.parent if hasattr(pytestconfig, "workerinput") else base) / "opened"
    kept.mkdir(exist_ok=True)

    def opened(name: str) -> Trace:
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv("STEPSCOPE_CACHE", str(kept))
            return open_trace(traces / name)

    return opened


@pytest.fixture(scope="session")
def library() -> Path:
    """The compiled library."""
    return LIBRARY


@pytest.fixture(scope="session")
def new_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folders that no test has had; a numbered one for each test would be found again among all of them."""
    base = tmp_path_factory.mktemp("caches")
    return (base / str(number) for number in count())


@pytest.fixture(autouse=True)
def cache_folder(new_folders: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of each test's own, so that none touches the user's or another test's."""
    folder = next(new_folders)
    folder.mkdir()
    monkeypatch.setenv("STEPSCOPE_CACHE", str(folder))
    monkeypatch.delenv("STEPSCOPE_CACHE_BYTES", raising=False)
    return folder
