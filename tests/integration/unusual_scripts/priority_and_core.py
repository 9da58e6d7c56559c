import os
os.nice(5); os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
print(len(os.sched_getaffinity(0)), os.cpu_count() > 0)
import threading; t = threading.Thread(target=lambda: print(len(os.sched_getaffinity(0)))); t.start(); t.join()
