import os, signal, subprocess, sys
if len(sys.argv) == 1 and not os.environ.get("IGN"):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    print(subprocess.run([sys.executable, "-c", "import signal; print(signal.getsignal(2))"], capture_output=True).stdout)
print(signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGHUP))
os.kill(os.getpid(), signal.SIGINT)
print("still here")
