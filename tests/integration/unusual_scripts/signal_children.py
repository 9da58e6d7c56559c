import signal, subprocess, sys
ended = []
signal.signal(signal.SIGCHLD, lambda *_: ended.append(1))
for _ in range(3):
    subprocess.run([sys.executable, "-S", "-c", ""])
print(len(ended))
