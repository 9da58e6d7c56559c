import atexit, os, signal, sys
atexit.register(print, "at exit")
signal.signal(signal.SIGTERM, lambda n, f: sys.exit(77))
try: os.kill(os.getpid(), signal.SIGTERM)
finally: print("finally")
