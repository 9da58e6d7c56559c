import sys
def hook(*error): raise TypeError("in the hook")
sys.excepthook = hook
raise ValueError("first")
