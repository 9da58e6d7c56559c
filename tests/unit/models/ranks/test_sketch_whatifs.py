"""Sketches, which predict for jobs too large to join, say what the full graph does of smaller ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_balanced_pipelines import generated
from tiers import family

from stepscope import open as open_trace
from stepscope.errors import ChangeError
from stepscope.graph import build_ranks
from stepscope.models.ranks import sketch_files
from stepscope.models.ranks.files import files_at
from stepscope.models.ranks.job import Job
from stepscope.models.ranks.replay_whatifs import whatifs
from stepscope.models.whatif import CHANGES, parse_request, predict


def compared(folder: Path, rel: float) -> None:
    """What-ifs of the sketches are those of the graph; a change that it refuses gains next to nothing."""
    graph = build_ranks(open_trace(folder, cache=False))
    job = Job.of([one.sketch for one in sketch_files(files_at(folder)) if one.sketch])
    answers = whatifs(job.table, job.replay)
    assert set(answers) == {"no_straggler", "bandwidth:factor=2"}
    for request, step_ms in answers.items():
        try:
            full = predict(graph, [parse_request(request, CHANGES)]).predicted_step_ms
        except ChangeError:
            full, rel = job.replay.step_ms, max(rel, 0.01)  # peers within 1 % work as long
        assert step_ms == pytest.approx(full, rel=rel), request


# Workers, a stage, sequences and links that are slow; stages with equal and with other kernels.
@pytest.mark.parametrize("number", family([18, 72, 0, 9, 27, 36, 117, 135], 8, unit=2))
def test_on_generated_pipelines(number: int, tmp_path: Path) -> None:
    compared(generated(number).write(tmp_path / "job"), rel=0.001)


@pytest.mark.main
def test_on_the_shared_job(traces: Path) -> None:
    compared(traces / "dlrm_8rank_v100", rel=0.02)
