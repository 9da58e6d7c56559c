"""A sitting of under ten minutes at a machine with a GPU, and what it leaves to be carried home.

    python3 -m benchmarks.gpu.sitting 1|2|3 FOLDER [options of benchmarks.gpu]

installs the wheels that came along and goes on with the parts of the sitting. After each part
FOLDER has the results so far, as archives of at most 15 MiB, and what was said. At home:

    cat FOLDER/results.tar.* | tar x -C benchmarks/gpu/results
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path
from threading import Timer

from benchmarks.gpu.places import RESULTS, ROOT, SITE, WHEELS

# What matters most comes first; together all parts.
SITTINGS = {
    "1": ("models", "captures", "snapshot", "stalls", "annotation"),
    "2": ("stages", "jax_steps", "precision", "optimizers", "layouts", "loading"),
    "3": ("batch_sizes", "overheads", "compiled"),
}
_MINUTES = 8.0
_PATIENCE_S = 75  # the kit's own for a last measurement, and some more
_ARCHIVE_BYTES = 15 * 2**20
_REFUSED = 2


def install_wheels() -> None:
    """Put the wheels that came along where the kit looks for packages."""
    wheels = sorted(map(str, WHEELS.glob("*.whl")))
    if not wheels or SITE.exists():
        return
    options = ["--quiet", "--no-index", "--no-deps", "--no-compile", "--target", str(SITE)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, *wheels])


def take(part: str, minutes: float, options: list[str], log: Path) -> int:
    """Take a part, and keep what is said; ends it where it does not end."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--part", part, "--minutes", f"{minutes:.2f}"]
    with (
        log.open("a") as file,
        subprocess.Popen(
            [*command, *options], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process,
    ):
        assert process.stdout
        limit = Timer(60 * minutes + _PATIENCE_S, process.terminate)
        limit.start()
        try:
            for line in process.stdout:
                print(line, end="", flush=True)
                file.write(line)
        except BaseException:  # this process is to end
            process.terminate()
            raise
        finally:
            limit.cancel()
        return process.wait()


def pack(results: Path, folder: Path, most: int = _ARCHIVE_BYTES) -> list[Path]:
    """Write everything below `results` as archives of at most `most` bytes, in order."""
    written = []
    with tempfile.TemporaryFile() as whole:
        with tarfile.open(fileobj=whole, mode="w") as archive:
            archive.add(results, arcname=".")
        whole.seek(0)
        while piece := whole.read(most):
            path = folder / f"results.tar.{len(written):02}"
            partial = folder / f"partial.{path.name}"
            partial.write_bytes(piece)
            written.append(partial.replace(path))
    for old in set(folder.glob("results.tar.*")) - set(written):
        old.unlink()
    return written


def main() -> int:
    args, options = arguments()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.wheels:
        install_wheels()
    results = args.out.absolute().parent if args.out else RESULTS
    results.mkdir(parents=True, exist_ok=True)
    options += ["--out", str(args.out.absolute())] if args.out else []
    log = args.folder / f"sitting{args.sitting}.log"
    end, code = time.monotonic() + 60 * args.minutes, 0
    for part in SITTINGS[args.sitting]:
        code = max(code, take(part, (end - time.monotonic()) / 60, options, log))
        packed = pack(results, args.folder)
        if code == _REFUSED:
            break
    for path in packed:
        print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB")
    return code


def arguments() -> tuple[argparse.Namespace, list[str]]:
    """What this program understands, and what it passes on."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu.sitting", description=__doc__.splitlines()[0]
    )
    parser.add_argument("sitting", choices=SITTINGS)
    parser.add_argument("folder", type=Path, help="what is carried home")
    parser.add_argument("--out", type=Path, help="the folder of results (one for each device)")
    parser.add_argument("--minutes", type=float, default=_MINUTES, help="in all (8)")
    parser.add_argument("--no-wheels", dest="wheels", action="store_false", help="install nothing")
    return parser.parse_known_args()


if __name__ == "__main__":
    sys.exit(main())
