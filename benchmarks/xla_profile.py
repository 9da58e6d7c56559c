"""How long an XLA profile takes to read, with our own reader and with the package `protobuf`.

python benchmarks/xla_profile.py [MEGABYTES]

The file is `tests/golden/jax/mlp_cpu.xplane.pb.gz` repeated: protobuf messages can be
concatenated. Each reader runs in a separate process; time is of the CPU, memory the peak.
`protobuf` (if it is installed) only makes Python tuples of the same events; ours makes the trace.
"""

from __future__ import annotations

import gzip
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SAMPLE = Path(__file__).parents[1] / "tests/golden/jax/mlp_cpu.xplane.pb.gz"
# message: (field, number, type of FieldDescriptorProto or a message, repeated)
MESSAGES = {
    "Stat": [
        ("key", 1, 3, 0),
        ("double", 2, 1, 0),
        ("unsigned", 3, 4, 0),
        ("signed", 4, 3, 0),
        ("text", 5, 9, 0),
        ("raw", 6, 12, 0),
        ("reference", 7, 4, 0),
    ],
    "Event": [("kind", 1, 3, 0), ("offset_ps", 2, 3, 0), ("duration_ps", 3, 3, 0), ("stats", 4, "Stat", 1)],
    "Line": [("id", 1, 3, 0), ("timestamp_ns", 3, 3, 0), ("events", 4, "Event", 1)],
    "Plane": [("lines", 3, "Line", 1)],
    "Space": [("planes", 1, "Plane", 1)],
}


def ours(path: Path) -> int:
    """Read a file into a trace."""
    from stepscope.read import read

    return len(read(path).events)


def by_protobuf(path: Path) -> int:
    """Parse a file, and take every value of every event out of it."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="x.proto", package="x", syntax="proto3")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, number, kind, repeated in fields:
            one = message.field.add(name=field, number=number, label=3 if repeated else 1)
            one.type = 11 if isinstance(kind, str) else kind
            if isinstance(kind, str):
                one.type_name = f".x.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    space = message_factory.GetMessageClass(pool.FindMessageTypeByName("x.Space"))()
    space.ParseFromString(path.read_bytes())
    events = [
        (
            event.kind,
            event.offset_ps,
            event.duration_ps,
            [(stat.key, stat.signed, stat.text, stat.reference) for stat in event.stats],
        )
        for plane in space.planes
        for line in plane.lines
        for event in line.events
    ]
    return len(events)


def measure(reader: str, path: Path) -> None:
    """Print what one reader takes, in this process."""
    start = time.process_time()
    try:
        events = {"ours": ours, "protobuf": by_protobuf}[reader](path)
    except ModuleNotFoundError as error:
        print(f"{reader:9} not measured: {error}")
        return
    spent = time.process_time() - start
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10
    print(f"{reader:9} {events:,} events   {spent:.1f} s of CPU   {peak:,} MiB at its peak")


def main(megabytes: int) -> None:
    """Make the file, and measure each reader on it."""
    sample = gzip.decompress(SAMPLE.read_bytes())
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "large.xplane.pb"
        path.write_bytes(sample * (megabytes * 10**6 // len(sample)))
        print(f"{path.stat().st_size / 1e6:.0f} MB")
        for reader in ("ours", "protobuf"):
            subprocess.run([sys.executable, __file__, "--as", reader, str(path)], check=False)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--as"]:
        measure(sys.argv[2], Path(sys.argv[3]))
    else:
        main(int(sys.argv[1]) if sys.argv[1:] else 100)
