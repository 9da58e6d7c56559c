"""The command line: one thin file per command."""

from stepscope.cli.commands import main

__all__ = ["main"]
