import os
print(sorted(name for name in os.environ if "STEPSCOPE" in name or "TORCH" in name))
