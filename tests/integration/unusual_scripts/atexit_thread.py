import atexit, threading
def late():
    try:
        thread = threading.Thread(target=print, args=("thread at exit",)); thread.start(); thread.join()
    except RuntimeError as error:
        print("refused")
atexit.register(late)
threading._register_atexit(print, "threads end") if hasattr(threading, "_register_atexit") else None
