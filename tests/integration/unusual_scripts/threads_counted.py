import os, threading
print(threading.active_count(), [thread.name for thread in threading.enumerate()], len(os.listdir("/proc/self/task")))
def work(): print(threading.active_count(), threading.current_thread().name, threading.get_ident() != threading.main_thread().ident)
thread = threading.Thread(target=work); thread.start(); thread.join()
print(threading.active_count(), threading.stack_size(), threading._dangling.__class__.__name__)
