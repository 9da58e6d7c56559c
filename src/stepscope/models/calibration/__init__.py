"""Benchmarks of single operators on this machine or its device, for what-ifs of their traces."""
