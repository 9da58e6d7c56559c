import os
os.closerange(3, 4096)
print([os.open("script.py", os.O_RDONLY) for _ in range(3)])
open("kept", "w").write("x")
