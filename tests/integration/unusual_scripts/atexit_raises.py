import atexit
atexit.register(exec, "raise RuntimeError('at exit')")
print("main")
