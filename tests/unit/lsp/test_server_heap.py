"""What editors leave in the server's C heap is used by all threads, and goes back to the system."""

from __future__ import annotations

import subprocess
import sys

import pytest

from stepscope.lsp.server_heap import ReturnedMemory
from stepscope.trace.freed_memory import glibc

pytestmark = pytest.mark.skipif(glibc() is None, reason="no glibc")

# Six threads that hold memory at once, then the number of heaps that they took it from.
HEAPS = """
import ctypes, re, sys, tempfile, threading
from stepscope.lsp.server_heap import share_heap
if sys.argv[1] == "shared":
    share_heap()
library = ctypes.CDLL(None)
library.fdopen.restype = ctypes.c_void_p
all_there = threading.Barrier(7)

def hold():
    held = bytearray(50_000)
    all_there.wait()
    all_there.wait()

threads = [threading.Thread(target=hold) for _ in range(6)]
for thread in threads:
    thread.start()
all_there.wait()
with tempfile.TemporaryFile() as file:
    stream = ctypes.c_void_p(library.fdopen(file.fileno(), b"w"))
    library.malloc_info(0, stream)
    library.fflush(stream)
    file.seek(0)
    print(file.read().count(b"<heap nr="))
all_there.wait()
"""
# Texts of 2 KB, of which one in a hundred stays: the kernel has the rest only if it is returned.
LEFT = """
from pathlib import Path
from stepscope.lsp.server_heap import ReturnedMemory, share_heap

def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

share_heap()
times = iter([0, 100])
memory = ReturnedMemory(lambda: next(times))
texts = [bytearray(2000) for _ in range(20_000)]
full = resident()
texts = texts[::100]
kept = resident()
memory.return_memory()
print(full - kept < 4e6, full - resident() > 20e6)
"""


def printed(program: str, *arguments: str) -> list[str]:
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def test_all_threads_use_one_heap() -> None:
    assert printed(HEAPS, "shared") == ["1"]
    assert printed(HEAPS, "") == ["7"]


def test_what_is_free_goes_back_to_the_system() -> None:
    assert printed(LEFT) == ["True", "True"]


def test_it_is_returned_once_in_a_while() -> None:
    times = iter([0.0, 9.0, 10.0, 15.0, 20.5])
    memory = ReturnedMemory(lambda: next(times))
    assert [memory.return_memory() for _ in range(4)] == [False, True, False, True]
