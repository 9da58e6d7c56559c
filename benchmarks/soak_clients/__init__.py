"""Clients of `soak.py`: some well behaved, which check every answer, and some that misbehave."""
