import sys, types
other = types.ModuleType("__main__")
other.value = 9
kept = sys.modules["__main__"]
sys.modules["__main__"] = other
import __main__
print(__main__.value)
