import resource, signal
soft = int(sum(resource.getrusage(resource.RUSAGE_SELF)[:2])) + 1
resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))
print("computes", flush=True)
while True: pass
