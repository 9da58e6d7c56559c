"""The command line: one thin file per command."""

from stepscope.faces.terminal.commands import main

__all__ = ["main"]
