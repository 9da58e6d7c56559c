"""The command line: one thin file per command."""

from stepscope.cli.main import main

__all__ = ["main"]
