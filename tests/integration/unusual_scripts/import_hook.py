import importlib.abc, importlib.machinery, pathlib, sys
class Made(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "made" else None
    def create_module(self, spec): return None
    def exec_module(self, module): module.value = 42
sys.meta_path.insert(0, Made())
import made
print(made.value, made.__spec__.name)
class Around:
    def __init__(self, inner): self.inner = inner
    def find_spec(self, *words): return self.inner.find_spec(*words)
sys.meta_path[:] = map(Around, sys.meta_path)
pathlib.Path("torch.py").write_text("answer = 42\n")
import torch
print(torch.answer)
