"""Models whose layers can be recomputed, merged, deleted and narrowed, each in plain PyTorch."""
