"""Reader of Nsight Systems recordings that were exported to SQLite."""
