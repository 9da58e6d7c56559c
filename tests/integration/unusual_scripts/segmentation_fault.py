import ctypes, resource
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("falls", flush=True)
ctypes.string_at(0)
