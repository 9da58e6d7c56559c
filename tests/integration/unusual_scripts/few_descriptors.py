import resource, threading, os
resource.setrlimit(resource.RLIMIT_CORE, (0, 0)); resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32)); resource.setrlimit(resource.RLIMIT_STACK, (1 << 20, 1 << 20))
t = threading.Thread(target=print, args=("thread",)); t.start(); t.join()
print([resource.getrlimit(n) for n in (resource.RLIMIT_NOFILE, resource.RLIMIT_CORE)])
