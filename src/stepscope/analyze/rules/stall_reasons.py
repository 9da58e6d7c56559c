"""`stall_reasons`: what the instructions of hot kernels wait for (DEEPCONTEXT 4.3, 4; 6.7)."""
