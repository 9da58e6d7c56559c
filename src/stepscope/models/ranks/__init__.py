"""A whole job: a small sketch of each rank, and what the sketches say together."""

from stepscope.models.ranks.job import JobReport, job_report
from stepscope.models.ranks.map_ranks import RankResult, sketch_files
from stepscope.models.ranks.sketch import Sketch, sketch_of
from stepscope.models.ranks.stragglers import Straggler

__all__ = ["JobReport", "RankResult", "Sketch", "Straggler", "job_report", "sketch_files", "sketch_of"]
