import os, subprocess, sys
print(sorted(map(int, os.listdir("/proc/self/fd")))[:-1])
command = [sys.executable, "-S", "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd')))[:-1])"]
print(subprocess.run(command, capture_output=True, text=True, close_fds=False).stdout)
