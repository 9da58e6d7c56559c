"""Reader of stepscope's own captures (`.stepscope`)."""
