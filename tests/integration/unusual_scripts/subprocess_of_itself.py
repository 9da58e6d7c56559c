import subprocess, sys
if len(sys.argv) == 1:
    print(subprocess.run([sys.executable, __file__, "child"], capture_output=True, text=True).stdout)
else:
    print("child", sys.argv[1:])
