"""A benchmark of what performance assistants can find out, and at what cost."""
