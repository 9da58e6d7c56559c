import builtins
original = builtins.__import__
def noisy(name, *rest, **more):
    if not name.startswith("_"):
        print("import", name)
    return original(name, *rest, **more)
builtins.__import__ = noisy
import colorsys
