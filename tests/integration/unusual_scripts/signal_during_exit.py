import atexit, os, signal
signal.signal(signal.SIGTERM, lambda *_: print("asked to end"))
atexit.register(os.kill, os.getpid(), signal.SIGTERM)
print("main")
