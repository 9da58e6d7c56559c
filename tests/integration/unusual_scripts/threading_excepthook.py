import threading
threading.excepthook = lambda found: print("hook", found.exc_type.__name__, found.thread.name)
thread = threading.Thread(target=lambda: 1 / 0, name="divides")
thread.start(); thread.join()
print(threading.excepthook is threading.__excepthook__)
