"""The engine that predicts kernels, fitted on public measurements and tested on devices left out."""
