import os, sys, threading
def replace(): os.execv(sys.executable, [sys.executable, "-S", "-c", "print('replaced by a thread')"])
thread = threading.Thread(target=replace)
thread.start(); thread.join()
