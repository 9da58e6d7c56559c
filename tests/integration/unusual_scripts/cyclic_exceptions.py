first, second = ValueError("first"), TypeError("second")
first.__context__, second.__context__ = second, first
raise first
