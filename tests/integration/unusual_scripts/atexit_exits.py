import atexit, os, sys
atexit.register(os._exit, 13)
print("main", flush=True)
sys.exit(1)
