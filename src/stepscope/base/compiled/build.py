"""Builds the compiled library.

`hatch_build.py` calls it when a wheel is made or the project is installed for development, before
anything else is installed, so it imports nothing but the standard library. After a change of the
sources: `python src/stepscope/base/compiled/build.py`.
"""

import os
import sys
import zlib
from pathlib import Path

LIBRARY = Path(__file__).with_name("libstepscope.so")
PACKAGE = Path(__file__).parents[2]
_SAMPLER = (  # of Linux only
    *(
        PACKAGE / "record" / "native" / f"{name}.cpp"
        for name in ("hidden_thread", "line_table", "safe_memory", "stack_reader")
    ),
    PACKAGE / "record" / "samples" / "native" / "loop_sampler.cpp",
)
SOURCES = (  # each next to the Python that calls it
    *(_SAMPLER if sys.platform == "linux" else ()),
    PACKAGE / "base" / "compiled" / "fingerprint.cpp",
    PACKAGE / "graph" / "native" / "simulate.cpp",
    PACKAGE / "read" / "chrome" / "native" / "decode_events.cpp",
    PACKAGE / "read" / "chrome" / "native" / "match_marks.cpp",
    PACKAGE / "read" / "memory_snapshot" / "native" / "decode_history.cpp",
    PACKAGE / "read" / "perfetto" / "native" / "track_events.cpp",
    PACKAGE / "models" / "ranks" / "native" / "longest_path.cpp",
    PACKAGE / "facts" / "roofline" / "native" / "equal_calls.cpp",
    PACKAGE / "trace" / "native" / "columns.cpp",
    PACKAGE / "trace" / "native" / "nesting.cpp",
    PACKAGE / "trace" / "native" / "start_order.cpp",
)
HEADERS = tuple(sorted({header for file in SOURCES for header in file.parent.glob("*.h")}))
_FLAGS = ("-std=c++17", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{LIBRARY.parent}")


def fingerprint() -> int:
    """A number of the sources, which the library holds: one of other sources is not used."""
    return zlib.crc32(b"".join(file.read_bytes() for file in (*SOURCES, *HEADERS)))


def build(library: Path = LIBRARY, flags: tuple[str, ...] = ()) -> str:
    """Build the library at `library`, where nothing is left if it cannot be built.

    Returns why it was not built, empty if it is there now. `flags` are further ones for the compiler.
    """
    import subprocess  # here, since every command imports this module for LIBRARY
    import tempfile

    library.unlink(missing_ok=True)
    if sys.platform == "win32":
        return "there is no build for Windows yet"
    if (compiler := _compiler()) is None:
        return "no C++ compiler was found (c++, g++ or clang++ on the PATH, or $CXX); install one"
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        defined = f"-DSTEPSCOPE_FINGERPRINT={fingerprint()}"
        command = [compiler, *_FLAGS, defined, *flags, "-o", str(built), *map(str, SOURCES)]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            return f"{compiler} failed: {done.stderr.strip()}"
        built.replace(library)
    return ""


def _compiler() -> str | None:
    import shutil

    chosen = os.environ.get("CXX")
    names = [chosen] if chosen else ["c++", "g++", "clang++"]
    return next((found for name in names if (found := shutil.which(name))), None)


if __name__ == "__main__":
    sys.exit(build() or None)
