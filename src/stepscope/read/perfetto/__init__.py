"""Perfetto's protobuf traces (`.pftrace`)."""
