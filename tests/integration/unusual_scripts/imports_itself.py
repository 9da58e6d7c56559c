import sys
print(__name__, __package__, __spec__, type(__builtins__).__name__, sorted(n for n in globals() if n.startswith("__")))
if __name__ == "__main__":
    import script
    print(script is sys.modules["__main__"], script.__spec__.name, script.__file__ == __file__)
