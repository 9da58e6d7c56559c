import resource, signal
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
print("no file may grow", flush=True)
