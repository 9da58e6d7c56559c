import trace
def work(): return [number for number in range(3)]
tracer = trace.Trace(count=1, trace=0)
tracer.runfunc(work)
print(sorted(line for (path, line), _ in tracer.results().counts.items() if path.endswith("script.py")))
