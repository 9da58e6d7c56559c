"""Memory over time: stacked by what it is for, what lives at a moment, and the segments then."""
