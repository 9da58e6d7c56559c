"""The time axis: every track where it was recorded, in tiles of several levels of detail."""
