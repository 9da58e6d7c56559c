"""What-ifs from sketches agree with those of the full graph on the shared 8-rank job."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepscope import open as open_trace
from stepscope.graph import build_ranks
from stepscope.models.ranks import job_report, sketch_files
from stepscope.models.ranks.files import files_at
from stepscope.models.whatif import CHANGES, parse_request, predict


def test_sketches_and_full_graph_agree_within_two_percent(traces: Path) -> None:
    folder = traces / "dlrm_8rank_v100"
    graph = build_ranks(open_trace(folder, cache=False))
    report = job_report([one.sketch for one in sketch_files(files_at(folder)) if one.sketch])
    assert set(report.whatifs) == {"no_straggler", "bandwidth:factor=2"}
    for request, step_ms in report.whatifs.items():
        full = predict(graph, [parse_request(request, CHANGES)]).predicted_step_ms
        assert step_ms == pytest.approx(full, rel=0.02), request
