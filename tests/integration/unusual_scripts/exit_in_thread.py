import sys, threading
thread = threading.Thread(target=sys.exit, args=(7,))
thread.start(); thread.join()
print("main goes on")
sys.exit(3)
