import os, subprocess, sys
r, w = os.pipe(); os.set_inheritable(w, True)
code = "import os; print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:-1])"
print(subprocess.run([sys.executable, "-c", code], close_fds=False, capture_output=True).stdout)
print(subprocess.run([sys.executable, "-c", code], pass_fds=[w], capture_output=True).stdout)
