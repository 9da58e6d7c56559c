"""Device work: kernel kinds, collectives, and idle time with its causes."""
