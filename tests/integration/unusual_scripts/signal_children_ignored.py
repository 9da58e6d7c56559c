import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
child = os.fork()
if child == 0:
    os._exit(4)
try:
    os.waitpid(child, 0)
except ChildProcessError as error:
    print(error)
