import sys
def hook(kind, error, traceback):
    depth = 0
    while traceback: depth, traceback = depth + 1, traceback.tb_next
    print("hook", kind.__name__, error, depth)
sys.excepthook = hook
raise ValueError("for the hook")
