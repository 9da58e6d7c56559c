"""Reads one file with one tool and prints what it took, as JSON; `ingest.py` runs it.

    python benchmarks/read_once.py stepscope|hta|hta_stacks|json|simdjson FILE

Runs under the interpreter that has the tool, so it imports nothing else but the standard library.
"""

from __future__ import annotations

import json
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module

Read = Callable[[str], int]


def stepscope() -> Read:
    """From the file to annotated tables, as the commands read it."""
    import stepscope

    for module in ("facts.annotate", "read", "facts.load", "trace.cache"):
        import_module(f"stepscope.{module}")
    return lambda path: len(stepscope.open(path, cache=False).events)


def hta() -> Read:
    """HTA's load: a frame of events with step, launch and forward-to-backward links."""
    from hta.configs.config import logger
    from hta.trace_analysis import TraceAnalysis

    logger.disabled = True
    return lambda path: len(TraceAnalysis(trace_files={0: path}, trace_dir="/").t.get_trace(0))


def hta_stacks() -> Read:
    """The same, and what of stepscope's tables it lacks that HTA can make: parents and depths."""
    from hta.common.trace_call_graph import CallGraph
    from hta.configs.config import logger
    from hta.trace_analysis import TraceAnalysis

    logger.disabled = True

    def read(path: str) -> int:
        trace = TraceAnalysis(trace_files={0: path}, trace_dir="/").t
        CallGraph(trace, ranks=[0])
        return len(trace.get_trace(0))

    return read


def plain_json() -> Read:
    """The text as Python objects, and nothing else."""
    import gzip

    def read(path: str) -> int:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            return len(json.load(file)["traceEvents"])

    return read


def simdjson() -> Read:
    """The text as simdjson's own tree, and nothing else."""
    import gzip

    parse = import_module("simdjson").Parser().parse

    def read(path: str) -> int:
        with (gzip.open if path.endswith(".gz") else open)(path, "rb") as file:
            return len(parse(file.read())["traceEvents"])

    return read


TOOLS = {
    "stepscope": stepscope,
    "hta": hta,
    "hta_stacks": hta_stacks,
    "json": plain_json,
    "simdjson": simdjson,
}


def main() -> None:
    tool, path = sys.argv[1:]
    warnings.simplefilter("ignore")
    read = TOOLS[tool]()
    begin, cpu = time.perf_counter(), time.process_time()
    try:
        rows = read(path)
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        print(json.dumps({"error": reason[:160]}))
    else:
        read_s, read_cpu_s = time.perf_counter() - begin, time.process_time() - cpu
        print(json.dumps({"read_s": read_s, "read_cpu_s": read_cpu_s, "rows": rows}))


if __name__ == "__main__":
    main()
