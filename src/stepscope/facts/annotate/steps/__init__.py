"""Training steps: where each begins and ends."""
