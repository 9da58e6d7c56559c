"""Remove the cost of recording from a capture's times."""
