# flags: -OO
"""A docstring."""
def work(): "Another one."
print(__doc__, work.__doc__)
