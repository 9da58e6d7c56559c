import os, sys
print("before")
raw = sys.stdout.detach()
raw.write(b"raw bytes\n"); raw.flush()
os.write(1, b"descriptor\n")
