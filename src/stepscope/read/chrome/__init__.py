"""Reader of trace-event JSON: PyTorch's profiler, and any other tool that writes Chrome traces."""
