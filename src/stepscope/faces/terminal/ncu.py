"""`stepscope report --ncu`: Nsight Compute on the kernels in which a step spends its time."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from stepscope.base.kernel_names import readable, without_parameters
from stepscope.errors import StepscopeError
from stepscope.faces.terminal.output import printable, say

if TYPE_CHECKING:
    from stepscope.facts.summary.facts import Kernel, Summary

_MOST_KERNELS = 5  # ncu replays each launch dozens of times, which takes seconds; chosen
_MOST_WORDS = 12  # of a name: templates of templates repeat themselves; chosen
_NO_KERNELS = ("memcpy", "memset", "communication")  # collectives that are replayed alone never end
_OTHER_VENDORS = re.compile(r"AMD|Instinct|Radeon|MTIA|TPU|Intel|Ascend", re.IGNORECASE)
# Words of C++ that demanglers write differently: `true` or `(bool)1`, `{lambda()#1}` or `[lambda() …]`.
_ODD_WORDS = {"true", "false", "bool", "lambda", "operator", "const", "unsigned", "int", "long", "char"}
_SCRIPT = "YOUR_SCRIPT.py"  # where the trace does not name it


def profile_hottest(summary: Summary) -> None:
    """Print the command that profiles a step's hottest kernels, and offer to run it as it is shown; raises
    StepscopeError if the step has no kernel of an NVIDIA GPU."""
    command = ncu_command(hottest_kernels(summary), summary.capture)
    folder = Path(summary.capture.get("cwd") or ".")
    away = "" if folder in (Path(), Path.cwd()) else f"cd {shlex.quote(str(folder))} && "
    click.echo(printable(line := away + shlex.join(command)))
    if line != printable(line):
        say("! the recorded command has control characters, which are left out here")
    elif _SCRIPT in command:
        say(f"! the trace does not name the script: replace {_SCRIPT}")
    elif summary.world_size > 1:
        say(f"! of a job of {summary.world_size} ranks: let its launcher start this command")
    elif shutil.which("ncu") and folder.is_dir() and sys.stdin.isatty():
        click.confirm("run it now?", abort=True, err=True)
        sys.exit(subprocess.call(command, cwd=folder))


def hottest_kernels(summary: Summary) -> list[Kernel]:
    """The kernels that take most of a step, without copies and collectives; raises StepscopeError if there
    is none of an NVIDIA GPU."""
    other = next((device.name for device in summary.devices if _OTHER_VENDORS.search(device.name)), None)
    if other:
        raise StepscopeError(f"Nsight Compute profiles NVIDIA GPUs, and this step ran on {other}")
    kernels = [kernel for kernel in summary.kernels if kernel.kind not in _NO_KERNELS]
    if summary.kernels_are != "kernels" or not kernels:
        raise StepscopeError("the trace has no kernel of a GPU that Nsight Compute could profile")
    return sorted(kernels, key=lambda kernel: -kernel.total_ms)[:_MOST_KERNELS]


def ncu_command(kernels: Sequence[Kernel], capture: Mapping[str, Any]) -> list[str]:
    """The words of the command that profiles the launches of one step, after the warm-up.

    Args:
        kernels: what to profile.
        capture: manifest of the recording, with the script's `command` and the steps before it.
    """
    script = [str(word) for word in capture.get("command") or (_SCRIPT,)]
    name = next((word for word in script if word != "-m"), _SCRIPT)
    per_step = max(round(sum(kernel.count for kernel in kernels)), 1)
    before = min(capture.get("steps_recorded") or (1,))
    patterns = dict.fromkeys(name_pattern(kernel.name) for kernel in kernels)
    options = {
        "--set": "full",
        "--kernel-name-base": "demangled",
        "--kernel-name": f"regex:{'|'.join(patterns)}",
        "--launch-skip": str(before * per_step),
        "--launch-count": str(per_step),
        "--export": f"{Path(name).stem}.hottest",
    }
    return ["ncu", *(word for option in options.items() for word in option), "python", *script]


def name_pattern(name: str) -> str:
    """A regular expression for a kernel's name, which two tools rarely write alike.

    Its words in their order: spaces, numbers, casts and unnamed namespaces differ.
    """
    text = without_parameters(readable(name)).replace("(anonymous namespace)", "")
    words = dict.fromkeys(re.findall(r"\b[A-Za-z_]\w{2,}", text.removeprefix("void ")))
    return ".*".join([word for word in words if word not in _ODD_WORDS][:_MOST_WORDS]) or re.escape(name)
