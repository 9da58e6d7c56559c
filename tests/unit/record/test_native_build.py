"""Built collectors are code: they are loaded from safe places only."""

import os
import stat

import pytest

from stepscope.record.contexts import native_build
from stepscope.record.contexts.native_build import BuildError


@pytest.fixture
def built(tmp_path):
    folder = tmp_path / "native" / ("0" * 16)
    folder.mkdir(parents=True)
    file = folder / "_contexts.so"
    file.write_bytes(b"no library")
    for path in (folder.parent, folder, file):
        path.chmod(0o755)
    return file


def test_a_private_collector_is_tried(built):
    with pytest.raises(BuildError, match="cannot load"):
        native_build._import(built)


@pytest.mark.parametrize("mode", [0o775, 0o757, 0o777])
@pytest.mark.parametrize("up", [0, 1, 2])
def test_what_others_can_write_to_is_not_loaded(built, mode, up):
    (built, *built.parents)[up].chmod(mode)
    with pytest.raises(BuildError, match=r"can be written to by others.*STEPSCOPE_BUILDS"):
        native_build._import(built)


def test_a_folder_that_everybody_could_replace_is_not_used(built, tmp_path):
    tmp_path.chmod(0o777)
    with pytest.raises(BuildError, match="by everybody"):
        native_build._import(built)
    tmp_path.chmod(0o777 | stat.S_ISVTX)
    with pytest.raises(BuildError, match="cannot load"):
        native_build._import(built)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give files away")
def test_what_belongs_to_another_user_is_not_loaded(built, monkeypatch):
    os.chown(built, 12345, -1)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    with pytest.raises(BuildError, match="belongs to another user"):
        native_build._import(built)


def test_a_failed_compilation_names_the_error(tmp_path):
    command = ["sh", "-c", "echo 'x.cpp:1: error: no such thing' >&2; exit 1"]
    with pytest.raises(BuildError, match=r"compiler failed: x\.cpp:1: error: no such thing"):
        native_build._execute([["true"], command, ["sleep", "60"]])


def test_a_build_removes_what_a_killed_one_left(tmp_path, monkeypatch):
    left = tmp_path / "key.partial"
    left.mkdir()
    (left / "sampler.o").write_bytes(b"half of it")
    recipe = native_build.Recipe("g++", (), (), (), "")
    monkeypatch.setattr(native_build, "_execute", _fail)
    with pytest.raises(BuildError, match="no such thing"):
        native_build._build(recipe, tmp_path / "key" / "_contexts.so")
    assert not list(tmp_path.iterdir())


def _fail(commands):
    raise BuildError("no such thing")
