import atexit, sys
atexit.register(print, "first registered")
atexit.register(lambda: print("exc", getattr(sys, "last_value", None)))
print("main")
