"""The flight recorder of a whole run: a short vector of each step, in a file of constant size."""
