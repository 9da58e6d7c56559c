"""A comparison of two runs as text for a terminal: the step first, then the largest changes."""

from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from stepscope.base.kernel_names import short_kernel
from stepscope.base.numbers import bar, ms, plural
from stepscope.facts.summary.text_tables import TIME_WORDS, WIDE, plain_table
from stepscope.models.diff import Row, RunComparison, Side, explain
from stepscope.models.diff.step_samples import MeasuredRun
from stepscope.models.memory.memory_text import short_place

_LEAST_CHANGE = 0.001  # of the step
_STYLE = {"slower": "red", "faster": "green", "new": "red", "gone": "green"}
_WORDS = {
    "slower": "slower",
    "faster": "faster",
    "unclear": "~ noise",
    "one_step": "? one step",
    "same": "same",
    "new": "new",
    "gone": "gone",
}
_TITLES = {
    "time use": "Time use",
    "stages": "Stages",
    "kinds": "Kinds of work, {work}",
    "modules": "Modules, {work}",
    "operators": "Operators, {work}",
    "kernels": "Kernels",
}


def print_comparison(console: Console, found: RunComparison, rows: int = 8) -> None:
    console.print(Group(*_ComparisonText(found, rows, console.width).parts()), highlight=False)


class _ComparisonText:
    def __init__(self, found: RunComparison, rows: int, width: int) -> None:
        self.found, self.rows, self.width = found, rows, width
        self.step_ms = max(_median(found.step.before), 1e-9)
        self.room = max(width - (84 if width >= WIDE else 61), 16)

    def parts(self) -> Iterator[RenderableType]:
        yield self.header()
        yield self.step()
        work = "device ms per step" if self.found.before.on_device else "ms per step of all threads"
        for name, rows in self.found.parts.items():
            if rows:
                yield self.table(_TITLES[name].format(work=work), rows)
        yield self.footer()

    def header(self) -> Text:
        text = Text()
        for mark, run in (("A", self.found.before), ("B", self.found.after)):
            facts = [run.facts["device"], plural(len(run.steps), "step")]
            facts += [f"rank {run.rank} of {run.facts['ranks']}"] if run.facts["ranks"] != "1" else []
            text.append(f"{mark}  ", "bold").append(_name(run), "bold")
            text.append(f"   {' · '.join(fact for fact in facts if fact)}\n", "dim")
        for name, (was, is_) in self.found.differing.items():
            text.append(f"! different {name}: {was or 'unknown'} → {is_ or 'unknown'}\n", "yellow")
        for mark, run in (("A", self.found.before), ("B", self.found.after)):
            for note in (*run.notes, run.load):
                text.append(f"! {mark}: {note}\n" if note else "", "yellow")
        return text

    def step(self) -> Text:
        text = self.times("Step", self.found.step)
        if self.found.device_work:
            text.append("\n").append(self.times("Device work", self.found.device_work))
        return text.append(f"\n▶ {explain(self.found)}", "bold")

    def times(self, name: str, row: Row) -> Text:
        text = Text.assemble((f"{name:12}", "bold"), (ms(_median(row.before)), "bold"), " → ")
        text.append(ms(_median(row.after)), "bold").append(" ms   ")
        change = "" if row.ratio is None else f"{row.ratio - 1:+.1%}".replace("-", "−")
        text.append(change, f"bold {_STYLE.get(row.verdict, '')}")
        sides = [side for side in (row.before, row.after) if side]
        spreads = " → ".join(f"{ms(side.least_ms)} to {ms(side.most_ms)}" for side in sides)
        return text.append(f"   steps from {spreads} ms", "dim")

    def table(self, title: str, rows: Sequence[Row]) -> Table:
        table = plain_table(title)
        heads = {"A": 8, "B": 8, "change": 9, "%": 6}
        table.add_column("", no_wrap=True)
        for head, width in heads.items():
            table.add_column(head, justify="right", no_wrap=True, min_width=width)
        if self.width >= WIDE:
            table.add_column("", no_wrap=True, width=8)
        table.add_column("", no_wrap=True, min_width=15)
        notable = [row for row in rows if abs(row.change_ms) >= _LEAST_CHANGE * self.step_ms]
        longest = max((abs(row.change_ms) for row in notable), default=1.0) or 1.0
        shown = notable[: self.rows]
        shorten = short_place if rows is self.found.parts["modules"] else short_kernel
        for row in shown:
            table.add_row(shorten(_label(row), self.room), *self.cells(row, longest))
        if left := len(rows) - len(shown):
            change = sum(row.change_ms for row in rows) - sum(row.change_ms for row in shown)
            label = f"… {left} more" if notable else f"{left} without a notable change"
            # Modules contain each other: their changes do not add up.
            total = "" if rows is self.found.parts["modules"] else _signed(change)
            table.add_row(Text(label, "dim"), "", "", Text(total, "dim"))
        return table

    def cells(self, row: Row, longest: float) -> list[RenderableType]:
        style = _STYLE.get(row.verdict, "dim")
        cells: list[RenderableType] = [_value(row.before), _value(row.after)]
        cells += [Text(_signed(row.change_ms), style), Text(_percent(row), style)]
        if self.width >= WIDE:
            cells.append(Text(bar(abs(row.change_ms) / longest, 8), style))
        return [*cells, Text(f"{_WORDS[row.verdict]}{_calls(row) if self.width >= WIDE else ''}", "dim")]

    def footer(self) -> Text:
        note = "A and B are medians over the steps. Noise: a change within step-to-step variation."
        text = Text(f"\n{note}", "dim")
        for run in (self.found.before, self.found.after):
            if run.evidence in ("pattern", "whole_trace"):
                text.append(f"\n! {_name(run)} marks no steps; they are inferred ({run.evidence})", "yellow")
        if not self.found.before.on_device:
            text.append("\nOperators are compared by CPU time: at least one side has no device work.", "dim")
        return text


def _label(row: Row) -> str:
    if len(row.key) == 2:
        return " ".join(row.key).replace("_", " ")
    kind, _, part = row.key[0].partition(": ")
    return TIME_WORDS.get(part, part) if part and kind in ("idle", "busy") else row.key[0]


def _name(run: MeasuredRun) -> str:
    return run.source.replace("\\", "/").rpartition("/")[2]


def _median(side: Side | None) -> float:
    return side.median_ms if side else 0.0


def _value(side: Side | None) -> RenderableType:
    return ms(side.median_ms) if side else Text("–", "dim")


def _signed(change_ms: float) -> str:
    return f"{'+' if change_ms >= 0 else '−'}{ms(abs(change_ms))}"


def _percent(row: Row) -> str:
    if row.before is None or row.after is None or row.ratio is None:
        return ""
    return f"{row.ratio - 1:+.0%}".replace("-", "−") if row.ratio < 10 else f"{row.ratio:.0f}x"


def _calls(row: Row) -> str:
    was, is_ = (side.count if side else None for side in (row.before, row.after))
    if was is None or is_ is None or was == is_:
        return ""
    return f", {was:g} → {is_:g}×"
