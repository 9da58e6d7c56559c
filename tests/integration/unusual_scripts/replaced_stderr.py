import atexit, io, sys
sys.stderr = io.StringIO()
atexit.register(lambda: print(repr(sys.stderr.getvalue())))
print("hidden", file=sys.stderr)
