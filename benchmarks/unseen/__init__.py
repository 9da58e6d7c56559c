"""Models of kinds that no other benchmark has."""
