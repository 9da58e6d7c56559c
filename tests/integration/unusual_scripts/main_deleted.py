import sys
kept = sys.modules.pop("__main__")
print("no main", "__main__" in sys.modules)
