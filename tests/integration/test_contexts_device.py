"""Device work in the tree. There is no device here: small libraries stand in for the vendors'.

They deliver records in the layout of the vendors' headers, so attribution is tested for real. What
a real driver does is not.
"""

import ast
import json
import os
import subprocess
import sys
import textwrap

import pytest
import torch
from collected import Collected
from stand_in import build_stand_in

from stepscope.record.contexts.capability_probe import PARTS, probe

SCRIPT = """
import ctypes, torch, stepscope
cupti = ctypes.CDLL({library!r})
cupti.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]
cupti.fake_copy.argtypes = 3 * [ctypes.c_uint64]
cupti.fake_copy.argtypes = [ctypes.c_uint64] * 3
FORWARD, BACKWARD = b"_Z7forwardPf", b"backward_kernel"

class Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        cupti.fake_launch(FORWARD, 1000, 1700)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        cupti.fake_launch(BACKWARD, 2000, 2500)
        return grad

with stepscope.record_contexts("run.stepscope"):
    for _ in range(3):
        x = torch.ones(3, requires_grad=True)
        cupti.fake_copy(12, 10, 60)
        Work.apply(x).sum().backward()  # the forward line
    cupti.fake_stray()
"""


@pytest.fixture(scope="module")
def build(tmp_path_factory):
    return lambda name: build_stand_in(name, tmp_path_factory.mktemp("stand_in"))


@pytest.fixture(scope="module")
def library(build):
    return build("fake_cupti")


def run(library, folder, variable="STEPSCOPE_CUPTI", **environment):
    script = folder / "work.py"
    script.write_text(textwrap.dedent(SCRIPT.format(library=str(library))))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, variable: str(library), **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return Collected.read(folder / "run.stepscope"), script


def test_kernels_stand_under_what_launched_them(library, tmp_path):
    collected, script = run(library, tmp_path)
    forward, backward = collected.named("forward(float*)"), collected.named("backward_kernel")
    (kernel,) = forward
    assert kernel.metrics["device_ns"] == {
        "count": 3,
        "sum": 2100,
        "min": 700,
        "max": 700,
        "squares": 3 * 700**2,
    }
    assert (kernel.kind, kernel.cls) == ("kernel", "kernel")
    launched = {name: kernel.metrics[name]["sum"] / 3 for name in ("blocks", "threads", "registers")}
    assert launched == {"blocks": 12, "threads": 12 * 128, "registers": 40}
    assert kernel.metrics["shared_bytes"]["max"] == 1024
    launch = kernel.parent
    assert (launch.kind, launch.name, launch.count) == ("runtime", "cudaLaunchKernel", 3)
    lines = script.read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if "# the forward line" in text)
    assert line in kernel.lines(script)
    (later,) = backward
    assert line in later.lines(script)
    assert any(c.backward for c in later.path)
    assert later.metrics["device_ns"]["sum"] == 1500


def test_copies_are_named_by_their_direction(library, tmp_path):
    collected, _ = run(library, tmp_path)
    (copy,) = collected.named("Memcpy HtoD (Pageable -> Device)")
    assert (copy.cls, copy.parent.name) == ("memcpy", "cudaMemcpyAsync")
    assert copy.metrics["device_ns"]["sum"] == 150


def test_amd_kernels_stand_under_what_launched_them(build, tmp_path):
    collected, _ = run(build("fake_roctracer"), tmp_path, variable="STEPSCOPE_ROCTRACER")
    (kernel,) = collected.named("forward(float*)")
    assert (kernel.parent.kind, kernel.parent.name) == ("runtime", "hipLaunchKernel")
    assert kernel.metrics["device_ns"]["sum"] == 2100
    (later,) = collected.named("backward_kernel")
    assert any(c.backward for c in later.path)
    (copy,) = collected.named("Memcpy")
    assert copy.metrics["device_ns"]["sum"] == 150


WATCHED = """
from stepscope.record.contexts.monitor import Domain, Phase, monitoring
import ctypes
cupti = ctypes.CDLL({library!r})
cupti.fake_launch.argtypes = [ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint64]

def launch():
    cupti.fake_launch(b"_Z7forwardPf", 1000, 1700)

def note(what):
    ran = what.phase is Phase.ACTIVITY
    path = [frame.name for frame in monitor.call_path(["python", "kernel"], what.context)] if ran else []
    print([what.phase.name, what.name, what.nanoseconds, what.arguments, path])

with monitoring() as monitor:
    monitor.watch(Domain.DEVICE, note)
    launch()
    cupti.fake_copy(512, 2000, 2100)
"""


def test_a_tool_is_told_of_calls_and_of_their_work_with_who_launched_it(library, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", "import torch\n" + WATCHED.format(library=str(library))],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
        env={**os.environ, "STEPSCOPE_CUPTI": str(library)},
    )
    assert done.returncode == 0, done.stderr
    launch = {"grid": [6, 2, 1], "block": [128, 1, 1], "shared_bytes": 1024, "stream": 7}
    path = ["<module>", "launch", "cudaLaunchKernel", "forward(float*)"]
    told = [ast.literal_eval(line) for line in done.stdout.splitlines()]
    copied = "Memcpy HtoD (Pageable -> Device)"
    assert told == [
        ["BEGIN", "cudaLaunchKernel", 0, launch, []],
        ["END", "cudaLaunchKernel", 0, {}, []],
        ["BEGIN", "cudaMemcpyAsync", 0, {"bytes": 512, "kind": "HtoD"}, []],
        ["END", "cudaMemcpyAsync", 0, {}, []],
        ["ACTIVITY", "forward(float*)", 700, {}, path],
        ["ACTIVITY", copied, 100, {}, ["<module>", "cudaMemcpyAsync", copied]],
    ]


def test_work_without_a_launch_is_counted_as_such(library, tmp_path):
    collected, _ = run(library, tmp_path)
    assert collected.content["dropped"]["device_records"] == 1
    assert "kernel" in collected.content["sources"]


@pytest.mark.parametrize(
    ("variable", "code", "sentence"),
    [
        ("FAKE_CUPTI_SUBSCRIBE", "39", "another profiler of this process uses CUPTI"),
        ("FAKE_CUPTI_ENABLE", "35", "no permission to profile the device"),
        ("FAKE_CUPTI_ENABLE", "1", "cuptiActivityEnable failed: CUPTI_ERROR_FAKE (1)"),
    ],
)
def test_what_hinders_is_told_and_the_rest_works(library, tmp_path, variable, code, sentence):
    collected, _ = run(library, tmp_path, **{variable: code})
    assert any(sentence in note for note in collected.content["notes"])
    assert "kernel" not in collected.content["sources"]
    assert not collected.of_kind("kernel")
    assert collected.named("aten::mul")


def test_a_probe_says_what_is_missing():
    found = probe()
    if not torch.cuda.is_available():
        assert found["NVIDIA"]
    assert found["native collector"] == ""
    assert tuple(found) == PARTS
    assert json.dumps(found)
