import sys
sys.unraisablehook = lambda found: print("unraisable", type(found.exc_value).__name__, found.err_msg)
class Bad:
    def __del__(self): raise ValueError("in __del__")
Bad()
kept = Bad()
