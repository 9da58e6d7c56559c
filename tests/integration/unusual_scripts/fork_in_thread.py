import os, threading
def fork():
    child = os.fork()
    if child == 0:
        print("child of a thread", threading.active_count(), flush=True)
        os._exit(8)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
thread = threading.Thread(target=fork)
thread.start(); thread.join()
