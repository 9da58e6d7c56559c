"""Short ways to serve drawn traces, and to make requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stepscope.faces.page.requests import Query
from stepscope.faces.page.routes import answer
from stepscope.faces.page.trace_view import TraceView
from stepscope.facts.annotate import annotate
from stepscope.facts.contexts import build_contexts, with_contexts
from stepscope.testing import drawn_trace
from stepscope.trace.trace import Trace

STEP = """
    main     |   0 100 | ProfilerStep#1
    main     |   0  50 | ## forward ##
    main     |   5  20 | aten::conv2d         | seq=1 fwd=0 Input_Dims=[[4,3]]
    main     |   6   8 | cudaLaunchKernel     | corr=1
    main     |  20  30 | aten::relu
    main     |  50  90 | ## backward ##
    autograd |  55  60 | ConvolutionBackward0 | seq=1 fwd=1
    autograd |  56  57 | cudaLaunchKernel     | corr=2
    stream 7 |  30  60 | winograd             | corr=1 grid=[8,1,1] est._achieved_occupancy_%=25
    stream 7 |  60  75 | dgrad                | corr=2
    main     | 100 130 | ProfilerStep#2
    main     | 101 120 | ## forward ##
    main     | 105 119 | aten::conv2d         | Input_Dims=[[4,3]]
"""

TRACE = """[
{"ph": "X", "name": "ProfilerStep#1", "cat": "user_annotation", "pid": 1, "tid": 1, "ts": 0, "dur": 9},
{"ph": "X", "name": "aten::mm", "cat": "cpu_op", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
]"""


def opened(text: str = STEP, model: dict[str, Any] | None = None, **metadata: Any) -> TraceView:
    """A drawn trace as the page looks at it."""
    return TraceView(annotate(drawn_trace(text, model=model or {}, **metadata)))


def ask(trace: TraceView, name: str, **query: Any) -> dict[str, Any]:
    """The answer to a question."""
    query = {key: str(value) for key, value in query.items()}
    found: dict[str, Any] = msgspec.to_builtins(answer(trace, name, Query(query)))
    return found


def collected(tmp_path: Path, into: Trace) -> TraceView:
    """A trace with the contexts of a run of one line, which is in a file that can be read."""
    file = tmp_path / "train.py"
    file.write_text("import torch\n\nstep()\n")
    frames = f"""
        main     | 0 60 | ProfilerStep#1
        main     | 0 50 | {file}(3): <module>
        main     | 5 20 | aten::conv2d     | seq=1 fwd=0
        main     | 6  8 | cudaLaunchKernel | corr=1
        stream 7 | 9 40 | winograd         | corr=1
    """
    return TraceView(with_contexts(into, build_contexts(annotate(drawn_trace(frames)))))
