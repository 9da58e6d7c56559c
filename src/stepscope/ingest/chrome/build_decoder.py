"""Moved to `stepscope.compiled.build`; nothing imports this file any more."""
