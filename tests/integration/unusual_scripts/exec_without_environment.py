import os, sys
print("before", flush=True)
os.execve(sys.executable, [sys.executable, "-S", "-c", "import os; print(sorted(set(os.environ) - {'LC_CTYPE'}))"], {})
