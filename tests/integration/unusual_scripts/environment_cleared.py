import os, sys, subprocess
os.environ.clear()
print(os.environ, subprocess.run([sys.executable, "-c", "import os; print(sorted(os.environ))"], capture_output=True, env={}).stdout)
