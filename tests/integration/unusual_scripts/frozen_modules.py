import importlib.machinery, sys
spec = importlib.machinery.FrozenImporter.find_spec("__hello__")
import __hello__
print(spec.origin, __hello__.__name__, "zipimport" in sys.builtin_module_names)
