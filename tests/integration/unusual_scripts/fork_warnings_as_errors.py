# flags: -W error
import os, sys, threading, warnings
for _ in range(3):
    child = os.fork()
    if not child: os._exit(len(threading.enumerate()))
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
print([text for _, text, *_ in warnings.filters][:2], sys.warnoptions)
