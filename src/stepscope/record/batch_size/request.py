"""What the parent asks for, and what it gets: plain data both ways."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypedDict


@dataclass(frozen=True)
class Effort:
    """How many steps to take."""

    warmup: int = 2  # steps to let pass first; the first makes the optimizer's state
    memory: int = 2  # steps in which allocations are watched
    least: int = 5  # steps to time at least
    most: int = 40  # steps to time at most
    seconds: float = 1.0  # time after which `least` steps are enough


@dataclass(frozen=True)
class RunRequest:
    """One measurement."""

    entry: str  # the script, or the file with the provider functions; an absolute path
    result: str  # the file to write what was measured to
    log: str  # the file that takes the script's output
    batch: int  # the batch size; for a script, `arguments` or `edits` set it
    providers: str | None = None  # the prefix of the provider functions; None for a script
    module: str | None = None  # the name by which the entry is run as a module; None for a script
    arguments: Sequence[str] = ()  # the script's command line
    folder: str = "."  # where to run
    edits: Mapping[str, str] = field(default_factory=dict)  # files as they shall read, by absolute path
    encodings: Mapping[str, str] = field(default_factory=dict)
    capture: str | None = None  # a capture of the memory steps to write, for breakdowns
    estimate: bool = False  # run without computing, on fake tensors, to estimate memory alone
    as_gpu: bool = False  # estimate memory as on a GPU, as far as a CPU shows it
    effort: Effort = field(default_factory=Effort)
    timeout_s: float = 600.0  # seconds after which it is given up as hung
    # How the project is protected from the script (`Scratch.to_json`); None for not.
    scratch: Mapping[str, Any] | None = None
    store: str = ""  # a folder for the temporary data of this run

    @classmethod
    def from_json(cls, text: str) -> "RunRequest":
        facts: dict[str, Any] = json.loads(text)
        return cls(**{**facts, "effort": Effort(**facts.get("effort", {}))})

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def write(self, facts: Mapping[str, Any]) -> None:
        """Write the result, all or nothing."""
        partial = Path(f"{self.result}.partial")
        partial.write_text(json.dumps(facts), encoding="utf-8")
        partial.replace(self.result)


class DeviceFacts(TypedDict, total=False):
    """The device that was measured on: its memory in bytes, None if unknown; a CPU has no name."""

    type: str
    name: str | None
    memory_bytes: int | None
    energy_counter: str | None


class PowerReading(TypedDict):
    """Mean power, by the counters of a source."""

    watts: float
    source: str


class RunError(TypedDict, total=False):
    """What went wrong, with the line of the user's code to look at."""

    type: str
    message: str
    file: str | None
    line: int | None


class RunFacts(TypedDict, total=False):
    """What a run reports; which keys there are depends on `outcome`."""

    outcome: str  # measured, estimated, too_short, no_steps, out_of_memory or failed
    error: RunError
    why: str  # there are no steps
    framework: str
    device: DeviceFacts
    power: PowerReading | None
    steps_seen: int
    steps_ms: list[float]  # of the timed steps with the longest inputs
    samples: list[int]  # of the same steps; of an estimate, of its last one
    input_elements: tuple[int, int]  # the least and the most of all steps
    bytes: int  # the peak
    reserved_bytes: int | None  # the most that the allocator held; None if unknown
    exact: bool  # whether all allocations were counted
    memory: dict[str, int]  # the peak by kind, where it is known
    modules: list[dict[str, Any]]  # the estimated peak by module: `path`, `bytes` and bytes by kind
    history: list[tuple[int, int]]  # of an estimate as on a GPU: a storage and its bytes, or -1
    allocator: str  # the settings of its allocator, as the environment has them
    autocast: bool  # whether an estimate as on a GPU used torch.autocast
    outside_writes: list[str]  # files outside the project that the script changed
