"""Match the leaves of a model tree with operators by name and order."""
