"""The page: what it shows of a trace, over a local server or in one file."""
