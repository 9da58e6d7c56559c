"""How many of 40 planted causes a scripted client finds through each interface, and at what cost.

    python -m assistants [--seeds 4] [--server COMMAND --calls FILE]      # in benchmarks/

COMMAND starts another server of the Model Context Protocol on standard input and output in the folder
of the recordings; FILE is a JSON list of [tool, arguments], where `{file}` is the recording.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shlex
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from assistants.causes import CAUSES, Case, case
from assistants.interfaces import Ask, Talk, ask_explain, ask_sql, ask_stepscope, explain_of, scripted, sql_of

MOST_CALLS, MOST_BYTES = 4, 12_000  # within which a cause counts as reachable

Script = Callable[[Talk, Path], None]


@dataclass(frozen=True)
class Answer:
    """What a client answered about a recording."""

    case: Case
    cause: str
    line: int
    calls: int
    size: int

    @property
    def is_right(self) -> bool:
        """Whether cause and line are right, within the limits."""
        is_cheap = self.calls <= MOST_CALLS and self.size <= MOST_BYTES
        return is_cheap and (self.cause, self.line) == (self.case.cause.name, self.case.line)


def answers(
    folder: Path, chosen: Sequence[Case], ask_of: Callable[[Path], Ask], script: Script
) -> list[Answer]:
    """A client's answers about each recording."""
    result = []
    for each in chosen:
        file = each.write(folder)
        talk = Talk(ask_of(file))
        script(talk, file)
        result.append(Answer(each, talk.reading.cause, talk.reading.line, talk.calls, talk.size))
    return result


def from_server(folder: Path, chosen: Sequence[Case], target: Any, script: Script) -> list[Answer]:
    """The same through the SDK's client of a server, which is started once."""
    from mcp import Client

    async def inside() -> list[Answer]:
        async with Client(target) as client:
            loop = asyncio.get_running_loop()

            def ask(tool: str, arguments: dict[str, Any]) -> str:
                asked = asyncio.run_coroutine_threadsafe(client.call_tool(tool, arguments), loop)
                return "".join(getattr(part, "text", "") for part in asked.result().content)

            return await asyncio.to_thread(answers, folder, chosen, lambda file: ask, script)

    return asyncio.run(inside())


def stdio(command: Sequence[str], folder: Path) -> Any:
    """A server that a command starts, for the SDK's client."""
    from mcp import StdioServerParameters
    from mcp.client.stdio import stdio_client

    return stdio_client(StdioServerParameters(command=command[0], args=[*command[1:]], cwd=folder))


def row(name: str, found: Sequence[Answer]) -> str:
    """The interface's line of the table."""
    right, count = sum(each.is_right for each in found), len(found)
    calls, size = (sorted(getattr(each, key) for each in found) for key in ("calls", "size"))
    return (
        f"{name:<28} {right:>3} of {count} ({right / count:.0%})"
        f"{calls[count // 2]:>6} {calls[-1]:>4}{size[count // 2]:>9,} {size[-1]:>7,}"
    )


def main() -> None:
    """Print the table, and each wrong answer."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=4, help="recordings of each cause")
    parser.add_argument(
        "--server", metavar="COMMAND", help="another server, started in the recordings' folder"
    )
    parser.add_argument("--calls", metavar="FILE", type=Path, help="what to ask it")
    options = parser.parse_args()
    chosen = [case(cause, seed) for cause in CAUSES for seed in range(options.seeds)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        own = stdio([sys.executable, "-m", "stepscope", "mcp", name], folder)
        found = {
            "stepscope mcp": from_server(folder, chosen, own, ask_stepscope),
            "stepscope explain": answers(folder, chosen, explain_of, ask_explain),
            "SQL over the JSON": answers(folder, chosen, sql_of, ask_sql),
        }
        if options.server:
            calls = [(tool, arguments) for tool, arguments in json.loads(options.calls.read_text())]
            server = stdio(shlex.split(options.server), folder)
            found[options.server[:28]] = from_server(folder, chosen, server, scripted(calls))
    print(f"{'interface':<28} {'right':<16} calls most    bytes    most")
    for interface, each in found.items():
        print(row(interface, each))
    for interface, each in found.items():
        for wrong in each:
            if not wrong.is_right:
                truth = f"{wrong.case.cause.name} at {wrong.case.line}"
                print(f"  {interface}: {truth}: answered {wrong.cause or 'nothing'} at {wrong.line}")


if __name__ == "__main__":
    main()
