import sys, threading
lock, held = threading.Lock(), threading.Event()
def hold():
    with lock:
        held.set()
        threading.Event().wait()
threading.Thread(target=hold, daemon=True).start()
held.wait()
print(lock.locked())
sys.exit(2)
