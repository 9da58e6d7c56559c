"""Loops in C++ that NumPy cannot do: a library without Python in it, called through ctypes."""
