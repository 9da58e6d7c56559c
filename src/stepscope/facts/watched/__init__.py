"""What a watched run lost time to: its slow steps, their causes, and the bill of the run."""
