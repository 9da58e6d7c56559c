"""Predictions where the CPU does the work: the backend that knows the machine's calibration."""
