"""Reader of the memory timelines that PyTorch's profiler exports."""
