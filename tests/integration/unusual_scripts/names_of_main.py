import sys
print(sorted(name for name in globals() if name.startswith("__")), __spec__, __file__ == sys.argv[0] or __file__)
print(sys.argv, __name__, sys.modules["__main__"].__dict__ is globals())
