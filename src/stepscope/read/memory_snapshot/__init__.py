"""Reader of PyTorch memory snapshots, pickle files that are never unpickled."""
