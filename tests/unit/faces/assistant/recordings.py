"""Small recordings for the tests of what assistants get."""

from __future__ import annotations

import json
from pathlib import Path

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"


def waiting_steps(
    folder: Path, *, names: tuple[str, ...] = ("aten::mm",), name: str = "waits", kernels: bool = False
) -> Path:
    """Two steps of 1 ms that wait for data for half of it; the rest is operators of these names.

    Args:
        kernels: whether each launches one, on a device without a name.
    """
    events = [
        {"ph": "X", "pid": 1, "tid": 1, "ts": start + begin, "dur": length, "name": name, "cat": kind}
        for number, start in ((0, 0), (1, 1000))
        for begin, length, name, kind in (
            (0, 1000, f"ProfilerStep#{number}", "user_annotation"),
            (10, 500, LOADER, "user_annotation"),
            *(
                (520 + 470 * at / len(names), 470 / len(names), text, "cpu_op")
                for at, text in enumerate(names)
            ),
        )
    ]
    events += [
        {**of, "cat": kind, "name": what, "args": {"correlation": at, "device": 0, "stream": 7}} | where
        for at, of in enumerate([event for event in events if event["cat"] == "cpu_op"] if kernels else [])
        for kind, what, where in (
            ("cuda_runtime", "cudaLaunchKernel", {}),
            ("kernel", "ampere_sgemm_64x64", {"pid": 0, "tid": 7}),
        )
    ]
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"traceEvents": events}))
    return file
