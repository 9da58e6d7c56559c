"""The work of a step: operations, bytes, and peak rates of devices."""
