import os
print("done", flush=True)
os.closerange(0, 64)
