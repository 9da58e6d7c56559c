"""Networks of our own, in plain PyTorch; one file for each."""
