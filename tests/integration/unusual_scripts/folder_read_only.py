import os
os.chmod(".", 0o555)
print(oct(os.stat(".").st_mode))
os.chmod(".", 0o755)
