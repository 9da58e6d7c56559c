"""What every package may use: array types, files, processes, compiled loops."""
