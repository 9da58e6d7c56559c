import atexit, os, signal
atexit.register(print, "at exit")
os.kill(os.getpid(), signal.SIGINT)
