"""`stepscope explain`: what is known of a recording as Markdown, to paste into an assistant."""

from collections.abc import Callable
from typing import TypeVar

import click

from stepscope.errors import StepscopeError
from stepscope.faces.assistant.explanation import Knowledge, explanation
from stepscope.faces.terminal.analyze import analysis_of_file
from stepscope.faces.terminal.output import printable
from stepscope.faces.terminal.report import report_of_file
from stepscope.faces.terminal.source import InputFile, OnlyMemory, takes_file
from stepscope.faces.terminal.whatif import ranking_of_file
from stepscope.models.memory import memory_facts
from stepscope.models.memory.device_facts import holds_memory

LEAST_TOKENS = 500  # fewer have no room for what was left out
Answer = TypeVar("Answer")


@click.command()
@takes_file
@click.option(
    "--tokens",
    type=click.IntRange(LEAST_TOKENS),
    default=4000,
    show_default=True,
    help="Maximum length of the document; a token counts as 3 bytes.",
)
@click.option("--rank", type=int, help="Process rank; by default the slowest.")
def explain(file: InputFile, tokens: int, rank: int | None) -> None:
    """Summarize the step as Markdown, for an assistant.

    The facts of report, analyze, whatif, memory and ranks, most valuable first, within a budget of
    tokens. What has no room is counted, with the command that shows it. The same file gives the
    same text.

    \b
    stepscope explain train.stepscope | pbcopy
    """
    click.echo(printable(document(file, tokens, rank)))


def document(file: InputFile, tokens: int, rank: int | None, in_tools: bool = False) -> str:
    """The document about a file, of at most so many tokens; it names commands, or an assistant's tools."""
    return explanation(_knowledge(file, rank), tokens, in_tools)


def _knowledge(file: InputFile, rank: int | None) -> Knowledge:
    once, many = file.focused()
    try:
        summaries, job = report_of_file(once, rank, None)
    except OnlyMemory as only:
        return Knowledge(file.path, memory=memory_facts(only.trace))
    job = many.findings if many else job
    why: list[str] = []
    return Knowledge(
        file.path,
        summaries,
        job,
        _or_why("findings", why, lambda: analysis_of_file(once, rank, many.report if many else None)),
        _or_why("what-ifs", why, lambda: ranking_of_file(once, None, rank)),
        _or_why("memory", why, lambda: memory_facts(once.open()) if holds_memory(once.open()) else []) or (),
        why,
    )


def _or_why(what: str, why: list[str], answer: Callable[[], Answer]) -> Answer | None:
    """An answer; None where it does not apply, and the reason in `why`."""
    try:
        return answer()
    except StepscopeError as error:
        why.append(f"no {what}: {error}")
        return None
