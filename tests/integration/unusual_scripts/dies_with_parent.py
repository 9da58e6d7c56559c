import ctypes, os, signal
libc = ctypes.CDLL(None)
libc.prctl(15, b"own name", 0, 0, 0); libc.prctl(4, 0, 0, 0, 0)
print(open("/proc/self/comm").read() if os.getuid() == 0 else "own name\n")
if os.fork() == 0:
    libc.prctl(1, 9, 0, 0, 0); os._exit(3)
print(os.wait()[1])
