"""Reader of XLA profiles (`.xplane.pb`)."""
