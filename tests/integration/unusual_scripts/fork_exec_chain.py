import os, sys
n = int(os.environ.get("N", "0"))
print(n, sys.argv[1:], os.path.basename(__file__), flush=True)
if n < 2:
    if os.fork() == 0:
        os.execve(sys.executable, [sys.executable, "script.py", str(n)], {**os.environ, "N": str(n + 1)})
    print(os.wait()[1], flush=True)
