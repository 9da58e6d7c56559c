"""Runs the compiled decoder over mutated text with the compiler's checks of memory and arithmetic.

    python tests/fuzz/sanitize_decoder.py [20000]

Needs GCC. A fault ends the process with the sanitizer's report.
"""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from test_decoders import BEGINNINGS
from test_readers import TOKENS, mutated

from stepscope.base.compiled import library as compiled
from stepscope.base.compiled.build import build
from stepscope.read.chrome.compiled_decoder import decode_chunk

FLAGS = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
KINDS = ("insert", "replace", "cut", "copy", "flip", "number", "value")
BORDER = re.compile(rb"\}\s*,\s*\{")
LIBRARY = "DECODER_WITH_CHECKS"


def events_in(data: bytes) -> bytes:
    """The text of the events in a file, without the last one."""
    start = data.find(b"[", data.find(b'"traceEvents"')) + 1
    borders = [border.start() + 1 for border in BORDER.finditer(data, start)]
    return data[start : borders[-1] if borders else len(data)]


def check(library: Path, count: int) -> None:
    """Decode `count` texts, a third of them sound."""
    compiled.LIBRARY = library
    dice, texts, accepted = random.Random(0), list(map(events_in, BEGINNINGS)), 0
    for _ in range(count):
        text = dice.choice(texts)
        for _ in range(dice.randrange(3)):
            edit = (
                dice.choice(KINDS),
                dice.random(),
                dice.random(),
                dice.choice(TOKENS),
                dice.randrange(256),
            )
            text = mutated(text, [edit])
        size = dice.choice([len(text), dice.randrange(len(text) + 1)])
        accepted += decode_chunk(text, size) is not None
    print(f"{count} texts, {accepted} decoded, no fault")


def main() -> None:
    """Build with checks, and run this file again with the sanitizers' libraries loaded first."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20_000
    if library := os.environ.get(LIBRARY):
        check(Path(library), count)
        return
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "libstepscope.so"
        if why := build(target, FLAGS):
            sys.exit(why)
        names = ("libasan.so", "libubsan.so")
        found = [
            subprocess.check_output(["g++", f"-print-file-name={name}"], text=True).strip() for name in names
        ]
        environment = os.environ | {
            "LD_PRELOAD": " ".join(found),
            "ASAN_OPTIONS": "detect_leaks=0",
            "PYTHONMALLOC": "malloc",
            LIBRARY: str(target),
        }
        sys.exit(subprocess.run([sys.executable, *sys.argv], env=environment).returncode)


if __name__ == "__main__":
    main()
