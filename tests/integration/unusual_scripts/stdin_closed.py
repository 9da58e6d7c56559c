import os, sys
sys.stdin.close()
os.close(0)
print(os.open(os.devnull, os.O_RDONLY))
