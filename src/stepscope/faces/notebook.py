"""`%load_ext stepscope` in a notebook: `%%stepscope` records the steps of a cell and shows their report.

Findings, predictions and comparisons are shown as the terminal shows them.
"""

from __future__ import annotations

import argparse
import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from stepscope.errors import StepscopeError

if TYPE_CHECKING:
    from stepscope.trace.trace import Trace


class _Options(argparse.ArgumentParser):
    """Options of the magic; a wrong one is an error of the cell, not the end of a process."""

    def __init__(self) -> None:
        super().__init__("%%stepscope", add_help=False)
        self.add_argument("--steps", type=int, default=3)
        self.add_argument("--warmup", type=int, default=5)
        self.add_argument("--memory", action="store_true")
        self.add_argument("--stack", action="store_true")
        self.add_argument("-o", dest="path", default="notebook.stepscope")

    def error(self, message: str) -> Any:
        raise StepscopeError(f"{message}; {' '.join(self.format_usage().split())}")


def load_ipython_extension(shell: Any) -> None:
    """Add the magic, and how answers are shown, to an IPython shell, which calls this."""
    shell.register_magic_function(partial(_record, shell), "cell", "stepscope")
    html = shell.display_formatter.formatters["text/html"]
    html.for_type_by_name("stepscope.analyze.analysis", "Analysis", partial(_picture, "analyze"))
    html.for_type_by_name("stepscope.models.whatif.prediction", "Prediction", partial(_picture, "whatif"))
    html.for_type_by_name("stepscope.models.diff.compare", "RunComparison", partial(_picture, "diff"))


def _picture(command: str, answer: Any) -> str:
    """What a command prints of an answer."""
    from stepscope.analyze.findings_text import print_findings
    from stepscope.faces.terminal.diff_text import print_comparison
    from stepscope.faces.terminal.whatif import print_prediction
    from stepscope.facts.summary.report_text import drawn

    show: Any = {"analyze": print_findings, "whatif": print_prediction, "diff": print_comparison}[command]
    return drawn(lambda console: show(console, answer), f"stepscope {command}")


def _record(shell: Any, line: str, cell: str) -> Trace:
    """The trace of the steps in a cell, which a notebook shows as the report."""
    from stepscope.facts.load import open
    from stepscope.record import profile

    options = vars(_Options().parse_args(shlex.split(line)))
    source = shell.transform_cell(cell)
    code = compile(source, shell.compile.cache(source), "exec")  # under the name that tracebacks show
    with profile(**options, overwrite=True) as recording:
        exec(code, shell.user_ns)
    return open(recording.path)
