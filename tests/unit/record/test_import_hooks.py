"""Acting when a module is imported, and only then."""

import importlib
import importlib.util
import sys

import pytest

from stepscope.record.patch import AfterImport, replace


@pytest.fixture
def late(tmp_path, monkeypatch):
    """A module named `late_module` that counts its imports."""
    (tmp_path / "late_module.py").write_text("import sys\nready = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield "late_module"
    sys.modules.pop("late_module", None)


def test_the_action_runs_once_after_the_module_has(late):
    seen = []
    watch = AfterImport(late, lambda: seen.append(sys.modules[late].ready))
    watch.install()

    assert seen == []
    importlib.import_module(late)
    importlib.reload(sys.modules[late])

    assert seen == [True]
    assert watch not in sys.meta_path


def test_a_program_may_put_finders_of_its_own_around_all(late, monkeypatch):
    class Around:
        def __init__(self, inner):
            self.find_spec = inner.find_spec

    seen = []
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    AfterImport(late, lambda: seen.append(sys.modules[late].ready)).install()
    sys.meta_path[:] = [Around(finder) for finder in sys.meta_path if hasattr(finder, "find_spec")]

    importlib.import_module(late)

    assert seen == [True]


def test_looking_for_the_module_is_not_importing_it(late):
    seen = []
    watch = AfterImport(late, lambda: seen.append(True))
    watch.install()

    assert importlib.util.find_spec(late) is not None
    assert seen == []
    importlib.import_module(late)
    assert seen == [True]


def test_the_module_keeps_its_own_loader(late):
    AfterImport(late, lambda: None).install()

    module = importlib.import_module(late)

    assert type(module.__loader__).__name__ == "SourceFileLoader"
    assert "exec_module" not in vars(module.__loader__)


def test_a_module_already_imported_is_acted_on_at_once(late):
    importlib.import_module(late)
    seen = []

    AfterImport(late, lambda: seen.append(True)).install()

    assert seen == [True]


def test_an_import_that_fails_may_be_tried_again(late, tmp_path):
    (tmp_path / "late_module.py").write_text("raise ValueError('not yet')\n")
    seen = []
    watch = AfterImport(late, lambda: seen.append(True))
    watch.install()
    with pytest.raises(ValueError, match="not yet"):
        importlib.import_module(late)
    assert seen == []

    (tmp_path / "late_module.py").write_text("ready = 'it is ready now'\n")
    importlib.invalidate_caches()
    importlib.import_module(late)

    assert seen == [True]


def test_two_watches_for_one_module_both_act(late):
    seen = []
    for number in (1, 2):
        AfterImport(late, lambda number=number: seen.append(number)).install()

    importlib.import_module(late)

    assert sorted(seen) == [1, 2]
    assert "exec_module" not in vars(sys.modules[late].__loader__)


def test_a_finder_of_an_old_kind_is_passed_over_as_python_does(late, monkeypatch):
    seen = []
    watch = AfterImport(late, lambda: seen.append(True))
    monkeypatch.setattr(sys, "meta_path", [watch, object(), *sys.meta_path])
    importlib.import_module(late)
    assert seen == [True]


class Base:
    def inherited(self): ...


class Derived(Base):
    def own(self): ...

    @staticmethod
    def static(): ...


@pytest.mark.parametrize("name", ["inherited", "own", "static"])
@pytest.mark.parametrize("holder", [Derived, Derived()], ids=["class", "object"])
def test_what_is_replaced_is_afterwards_as_before(holder, name):
    before = dict(vars(holder))
    restore = replace(holder, name, ours := lambda: None)
    assert vars(holder)[name] is ours
    restore()
    assert dict(vars(holder)) == before


def test_what_the_program_has_replaced_meanwhile_stays():
    holder = Derived()
    restore = replace(holder, "own", lambda: None)
    holder.own = theirs = lambda: None
    restore()
    assert holder.own is theirs
