"""The process that runs one target on damaged inputs; `fuzz.py` starts it and watches over it.

python tests/fuzz/fuzz_worker.py TARGET FOLDER SECONDS SEED

Inputs that reach new lines are kept in FOLDER/corpus and damaged further; those that break the
target's rule are written to FOLDER/findings with the traceback. The input at work lies in a mapped
file, from which the parent takes it if this process dies or has to be ended.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import random
import resource
import struct
import sys
import time
import traceback
import warnings
from pathlib import Path

from mutations import LONGEST_BYTES
from reached_lines import PACKAGE, ReachedLines, files_of, lines_of
from targets import TARGETS, Target, mutations

HEADER = struct.Struct("<QQQ")  # executions, CPU ns at the start, input's length
STATE_BYTES = HEADER.size + 2 * LONGEST_BYTES


class State:
    """What the parent can see: how many executions, and the input at work."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), STATE_BYTES)
        self.executions = 0

    def begin(self, data: bytes) -> None:
        """An input is about to run."""
        self._memory[HEADER.size : HEADER.size + len(data)] = data
        self.executions += 1
        header = HEADER.pack(self.executions, time.process_time_ns(), len(data))
        self._memory[: HEADER.size] = header


class Worker:
    """Runs a target, and keeps what its inputs reach and break."""

    def __init__(self, name: str, folder: Path, seed: int) -> None:
        self.target: Target = TARGETS[name]
        self.corpus, self.findings = folder / "corpus", folder / "findings"
        self.state = State(folder / "state")
        self.chance = random.Random(seed)
        self.inputs: list[bytes] = []
        self.slowest_s = 0.0
        self.broken: dict[str, int] = {}
        self.reached = ReachedLines()

    def start(self) -> None:
        """Run the inputs known to be of use."""
        for path in (*self.target.seeds(), *sorted(self.corpus.iterdir())):
            data = path.read_bytes()
            self.run(data)
            self.inputs.append(data)

    def run(self, data: bytes) -> bool:
        """Run one input; returns whether it reached a new line."""
        self.state.begin(data)
        before, begun = self.reached.count, time.process_time()
        try:
            self.target.check(data)
        except Exception as error:
            self.keep_finding(data, error)
        self.slowest_s = max(self.slowest_s, time.process_time() - begun)
        return self.reached.count > before

    def keep_finding(self, data: bytes, error: Exception) -> None:
        """Write an input that breaks the rule, the first for each place in the sources."""
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename.startswith(str(PACKAGE))] or frames
        place = f"{type(error).__name__} {Path(own[-1].filename).name}:{own[-1].lineno}"
        self.broken[place] = self.broken.get(place, 0) + 1
        if self.broken[place] == 1:
            path = self.findings / hashlib.sha1(place.encode()).hexdigest()[:12]
            path.write_bytes(data)
            text = "".join(traceback.format_exception(error))
            path.with_suffix(".txt").write_text(f"{place}\n\n{text}", errors="replace")

    def fuzz(self, seconds: float) -> None:
        """Damage known inputs, newer ones more often, and keep those that reach new lines."""
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            newer = self.inputs[-(len(self.inputs) // 5 + 1) :]
            data = self.chance.choice(self.inputs if self.chance.random() < 0.5 else newer)
            for _ in range(self.chance.choice((1, 1, 1, 2, 4))):
                data = self.chance.choice(mutations(self.target))(data, self.chance)
            if self.run(data):
                (self.corpus / hashlib.sha1(data).hexdigest()[:16]).write_bytes(data)
                self.inputs.append(data)

    def report(self) -> dict[str, object]:
        """What the parent adds up."""
        lines = {line for file in files_of(self.target.sources) for line in lines_of(file)}
        return {
            "executions": self.state.executions,
            "cpu_s": time.process_time(),
            "slowest_s": self.slowest_s,
            "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "broken": self.broken,
            "reached": len(lines & self.reached.lines),
            "lines": len(lines),
        }


def main() -> None:
    """Run for some seconds, and print a line of JSON."""
    name, folder, seconds, seed = sys.argv[1:]
    warnings.simplefilter("error", RuntimeWarning)  # NumPy's: a user would see them
    worker = Worker(name, Path(folder), int(seed))
    worker.start()
    worker.fuzz(float(seconds))
    print(json.dumps(worker.report()))


if __name__ == "__main__":
    main()
