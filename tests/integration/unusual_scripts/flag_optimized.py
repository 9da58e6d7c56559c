# flags: -O
import subprocess, sys
assert False, "never checked"
print(__debug__, sys.flags.optimize, subprocess.run([sys.executable, "-c", "print(__debug__)"], capture_output=True, text=True).stdout)
