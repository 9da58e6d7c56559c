"""Precision and recall of `stepscope ranks` on jobs with planted faults.

    python benchmarks/ranks_accuracy.py [--jobs 10] [--ranks 64] [--files 1] [--out results.json]
    python benchmarks/ranks_accuracy.py --table results.json more.json

Jobs of 64, 256 and 1,024 ranks are made from one recorded step (`generated_jobs`): of the shared
8-rank DLRM job, with its kernels eight times as long, and of a recorded DDP job. A job is one of
`KINDS`; of each kind and template `--jobs` are judged from sketches, with other seeds, ranks and
noise, and `--files` of 16 to 48 ranks through the whole map. A job is *found* if the first
finding names exactly the planted ranks, an allowed stage, and the steps; *cause* says that the
cause is right, too; *wrong* counts findings that name other ranks. The cost of all findings
together is compared with the same job without its faults. `--kinds further` are the kinds of
`FURTHER`; like the others, they were known when the rules were written. `--kinds blind` are those
of `BLIND`, whose truth was written down before any rule had seen them; two of them are pipelined
jobs of 16 ranks, through files.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from generated_jobs.faults import BLIND, FURTHER, KINDS, faults
from generated_jobs.files import write_job
from generated_jobs.job import Job
from generated_jobs.pipelines import PIPELINED, pipelined
from generated_jobs.score import Score, score
from generated_jobs.sketches import sketches
from generated_jobs.template import Template, template

from stepscope.models.ranks import JobReport, job_report, sketch_files
from stepscope.models.ranks.files import files_at
from stepscope.models.ranks.sketch import Sketch

_NOISE = (0.003, 0.01, 0.02)
_STEPS = 48
# It exchanges nothing, and its device always has work queued: its CPU is never late.
_NOT_DDP = ("imbalanced_expert", "gc_pauses", "pauses_of_one", "slow_cpu", "brief_hiccups", "gc_of_some")


def cases(kinds: list[str], ranks: int, jobs: int, files: int) -> Iterator[dict[str, Any]]:
    """One row for each job."""
    templates = {"dlrm": template("dlrm", 8), "ddp": template("ddp")}
    for kind in kinds:
        if kind in PIPELINED or kind == "healthy":
            yield from (_of_pipelines(kind, seed) for seed in range(jobs))
        if kind in PIPELINED:
            continue
        for name, step in templates.items():
            if name == "ddp" and kind in _NOT_DDP:
                continue
            for seed in range(jobs):
                yield _of_sketches(kind, name, step, ranks, seed)
            for seed in range(files):
                yield _of_files(kind, name, step, seed)


def _of_sketches(kind: str, name: str, step: Template, ranks: int, seed: int) -> dict[str, Any]:
    noise = _NOISE[seed % len(_NOISE)]
    job = Job(name, step, ranks, _STEPS, faults(kind, seed, ranks), noise, seed)
    return _judged(kind, job, sketches(job), "sketches")


def _of_files(kind: str, name: str, step: Template, seed: int) -> dict[str, Any]:
    """A job of 8 steps; nodes and links need at least two others to be compared with."""
    ranks = {"slow_link": 48, "slow_node": 24}.get(kind, 16)
    job = Job(name, step, ranks, 8, faults(kind, seed, ranks, (2, 5)), _NOISE[1], seed)
    with TemporaryDirectory() as folder:
        results = sketch_files(files_at(write_job(job, Path(folder, "job"))))
    return _judged(kind, job, [one.sketch for one in results if one.sketch], "files")


def _of_pipelines(kind: str, seed: int) -> dict[str, Any]:
    job, fault = pipelined(kind, seed, _NOISE[seed % len(_NOISE)])
    healthy, _ = pipelined("healthy", seed, _NOISE[seed % len(_NOISE)])
    with TemporaryDirectory() as folder:
        files = sorted(job.write(Path(folder, "job")).iterdir())
        report = job_report([one.sketch for one in sketch_files(files) if one.sketch])
    judged = score([fault], report.stragglers, job.steps)
    gain = (job.step_us - healthy.step_us) / 1e3
    return _row(kind, "pipelined", 16, "files", judged, gain, report)


def _judged(kind: str, job: Job, ranks: Sequence[Sketch], source: str) -> dict[str, Any]:
    """The true gain is that of the steps that are compared: a warm-up step is none of them."""
    healthy = Job(job.name, job.template, job.ranks, job.steps, noise=job.noise, seed=job.seed)
    steps = sorted(set.intersection(*(set(one.steps) for one in ranks)))
    lengths = [np.diff(one.run.begin)[:, steps].mean() for one in (job, healthy)]
    report = job_report(ranks)
    judged = score(job.planted, report.stragglers, job.steps)
    gain = float(lengths[0] - lengths[1]) / 1e6
    return _row(kind, job.name, job.ranks, source, judged, gain, report)


def _row(
    kind: str, name: str, ranks: int, source: str, judged: Score, gain: float, report: JobReport
) -> dict[str, Any]:
    return {
        "kind": kind,
        "template": name,
        "ranks": ranks,
        "source": source,
        "planted": judged.planted,
        "found": judged.found,
        "cause": judged.cause,
        "wrong": judged.wrong,
        "gain_ms": gain,
        "step_ms": report.step_ms,
        "cost_ms": report.together_ms,
        "sentences": [one.sentence for one in report.stragglers],
    }


def table(rows: list[dict[str, Any]]) -> str:
    """A table by kind, as Markdown."""
    lines = [
        "| fault | jobs | found | cause right | wrong findings | cost, error in % of the step |",
        "|---|---|---|---|---|---|",
    ]
    for kind in (*KINDS, *FURTHER, *BLIND):
        mine = [row for row in rows if row["kind"] == kind]
        if not mine:
            continue
        errors = [100 * abs(row["cost_ms"] - row["gain_ms"]) / row["step_ms"] for row in mine]
        found, cause, wrong = (sum(row[name] for row in mine) for name in ("found", "cause", "wrong"))
        lines.append(
            f"| {kind} | {len(mine)} | {found} | {cause} | {wrong} | "
            f"{np.median(errors):.2f}, at most {max(errors):.2f} |"
        )
    planted = [row for row in rows if row["planted"]]
    found, wrong = sum(row["found"] for row in planted), sum(row["wrong"] > 0 for row in rows)
    recall = found / max(len(planted), 1)
    lines.append(
        f"\nRecall {recall:.3f} ({found} of {len(planted)} planted); "
        f"precision {found / max(found + wrong, 1):.3f} "
        f"({wrong} of {len(rows)} jobs with a wrong finding)."
    )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=64)
    parser.add_argument("--files", type=int, default=1)
    parser.add_argument(
        "--kinds", nargs="+", default=KINDS, choices=(*KINDS, *FURTHER, *BLIND, "further", "blind")
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--table", type=Path, nargs="+", help="of earlier results, --out")
    args = parser.parse_args()
    named = {"further": FURTHER, "blind": BLIND}
    kinds = [kind for one in args.kinds for kind in named.get(one, (one,))]
    if args.table:
        print(table([row for path in args.table for row in json.loads(path.read_text())]))
        return
    rows = []
    for row in cases(kinds, args.ranks, args.jobs, args.files):
        rows.append(row)
        print(row["kind"], row["template"], row["source"], row["found"], row["wrong"], flush=True)
        if args.out:
            args.out.write_text(json.dumps(rows, indent=1))
    print(table(rows))


if __name__ == "__main__":
    main()
