import importlib.abc, importlib.machinery, sys
asked = []
class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None): asked.append(name)
sys.meta_path.insert(0, Finder())
import wave, colorsys
try: import nothing_here
except ImportError as e: print(e)
print([n for n in asked if n in ("wave", "colorsys", "nothing_here")])
sys.meta_path.remove(next(f for f in sys.meta_path if isinstance(f, Finder)))
sys.meta_path[:] = [f for f in sys.meta_path if f in (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter, importlib.machinery.PathFinder)]
import sched; print(sched.__name__)
