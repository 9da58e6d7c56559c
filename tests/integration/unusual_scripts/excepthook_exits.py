import sys
def hook(*error): sys.exit(12)
sys.excepthook = hook
raise ValueError("first")
