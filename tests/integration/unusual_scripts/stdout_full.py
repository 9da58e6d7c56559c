import os
full = os.open("/dev/full", os.O_WRONLY)
os.dup2(full, 1)
print("cannot be flushed")
