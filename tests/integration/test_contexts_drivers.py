"""Calls of another device's library, which a file names. A small library is the driver, others are the
framework's plugins: each calls it in one of the ways in which libraries do."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest
from collected import Collected
from stand_in import compile_library

DRIVER = """
#include <stdint.h>
#include <errno.h>
int acmeLaunch(uint32_t blocks, double scale, void* stream, long a, long b, long c, long d, int32_t last) {
  errno = 7;
  return blocks * 1000 + (int)(scale * 100) + last + (int)(a + b + c + d);
}
double acmeScale(double factor) { return factor * 2; }
int acmeMalloc(void** address, uint64_t bytes) { *address = &acmeMalloc; return (int)(bytes % 7); }
void acmeWait(void) {}
/* calls of a library by itself are its own affair */
int acmeTwice(void) { acmeWait(); acmeWait(); return 2; }
"""
CALLS = """
#include <stdint.h>
#include <errno.h>
int acmeLaunch(uint32_t, double, void*, long, long, long, long, int32_t);
double acmeScale(double);
int acmeMalloc(void**, uint64_t);
void acmeWait(void);
int acmeTwice(void);
int NAME(void) {
  void* address = 0;
  errno = 3;
  int launched = acmeLaunch(6, 0.5, (void*)9, 1, 2, 3, 4, -5);
  acmeWait();
  return launched + (errno == 7) + (int)acmeScale(1.5) + acmeMalloc(&address, 4096) + acmeTwice();
}
"""
LOOKS_UP = """
#include <stdint.h>
#include <dlfcn.h>
int NAME(void) {
  void* driver = dlopen("DRIVER", RTLD_NOW);
  int (*launch)(uint32_t, double, void*, long, long, long, long, int32_t) = dlsym(driver, "acmeLaunch");
  return launch(6, 0.5, (void*)9, 1, 2, 3, 4, -5) + (dlsym(RTLD_DEFAULT, "acmeNothing") == 0);
}
"""
TABLE = """
void acmeWait(void);
static void (*const functions[])(void) = {acmeWait};
int NAME(void) { functions[0](); return 1; }
"""
# A plugin's name, its source, flags of its linking, and when it is loaded.
PLUGINS = {
    "lazy": (CALLS, "-Wl,-z,lazy"),
    "eager": (CALLS, "-Wl,-z,now,-z,relro"),
    "late": (CALLS, "-Wl,-z,lazy"),
    "lookup": (LOOKS_UP, "-Wl,-z,now"),
    "table": (TABLE, "-Wl,-z,now,-z,relro"),
}
FILE = """
["libacme.so*"]
acmeLaunch = {call = "launch", blocks = [1, "u32"], stream = 2, last = [7, "i32"]}
acmeMalloc = {call = "allocate", bytes = 2}
acmeWait = "synchronize"
acmeScale = "other"
acmeMissing = "copy"
["libother*.so"]
acmeLaunch = "launch"
"""
SCRIPT = """
import ctypes, sys, torch, stepscope
from stepscope.record.contexts.monitor import Domain, monitoring
from stepscope.record.contexts import ContextOptions, read_drivers

early = {name: ctypes.CDLL(f"./lib{name}.so") for name in ("lazy", "eager", "lookup", "table")}

def all_of_them():
    plugins = {**early, "late": ctypes.CDLL("./liblate.so")}
    return {name: getattr(library, name)() for name, library in plugins.items()}

before = all_of_them() if "first" in sys.argv else None
with stepscope.record_contexts("run.stepscope", drivers="acme.toml"):
    during = all_of_them()
after = all_of_them()
told = []
with monitoring(ContextOptions(drivers=read_drivers("acme.toml"))) as monitor:
    monitor.watch(Domain.DEVICE, lambda event: told.append((event.phase.name, event.name, event.arguments)))
    early["lazy"].lazy()
print([before or after, during, after, told])
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drivers")
    driver = compile_library("acme", DRIVER, folder, "-Wl,-soname,libacme.so.1")
    (folder / "libacme.so.1").symlink_to(driver)
    for name, (source, flags) in PLUGINS.items():
        text = source.replace("NAME", name).replace("DRIVER", str(folder / "libacme.so.1"))
        links = [] if source == LOOKS_UP else ["-L.", "-lacme", "-Wl,-rpath,$ORIGIN"]
        compile_library(name, text, folder, flags, *links)
    (folder / "acme.toml").write_text(FILE)
    (folder / "work.py").write_text(SCRIPT)
    return folder


# Whether plugins have called the driver before: lazy slots are linked then, or lead to the linker.
@pytest.fixture(scope="module", params=["first", "later"])
def done(request: pytest.FixtureRequest, folder: Path) -> tuple[list[object], Collected]:
    command = [sys.executable, "work.py", request.param]
    run = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stderr
    collected = Collected.read(folder / "run.stepscope")
    (folder / "run.stepscope").unlink()
    return ast.literal_eval(run.stdout), collected


def test_the_program_does_not_notice(done: tuple[list[object], Collected]) -> None:
    (before, during, after, _), _ = done
    called = 6055 + 1 + 3 + 4096 % 7 + 2
    assert before == {"lazy": called, "eager": called, "lookup": 6056, "table": 1, "late": called}
    assert during == after == before


def test_each_call_of_each_plugin_is_a_context(done: tuple[list[object], Collected]) -> None:
    _, collected = done
    calls = {(c.name, c.cls): c for c in collected.of_kind("runtime")}
    assert {call: context.count for call, context in calls.items()} == {
        ("acmeLaunch", "launch"): 4,
        ("acmeMalloc", "allocate"): 3,
        ("acmeWait", "synchronize"): 4,
        ("acmeScale", "other"): 3,
    }
    assert {context.file for context in calls.values()} == {"libacme.so.1"}
    callers = [context.name for context in calls["acmeWait", "synchronize"].path]
    assert "all_of_them" in callers
    assert calls["acmeMalloc", "allocate"].metrics["allocated_bytes"]["sum"] == 3 * 4096
    assert collected.content["notes"] == []
    assert "kernel" in collected.content["sources"]


def test_a_tool_is_told_before_and_after_with_arguments(done: tuple[list[object], Collected]) -> None:
    (*_, told), _ = done
    launch = {"call": "launch", "blocks": 6, "stream": 9, "last": -5}
    assert told == [
        ("BEGIN", "acmeLaunch", launch),
        ("END", "acmeLaunch", {}),
        ("BEGIN", "acmeWait", {"call": "synchronize"}),
        ("END", "acmeWait", {}),
        ("BEGIN", "acmeScale", {"call": "other"}),
        ("END", "acmeScale", {}),
        ("BEGIN", "acmeMalloc", {"call": "allocate", "bytes": 4096}),
        ("END", "acmeMalloc", {}),
    ]
