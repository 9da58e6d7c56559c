import sys
class Counting:
    def __init__(self, inner): self.inner, self.names = inner, []
    def find_spec(self, name, *rest):
        self.names.append(name)
        return self.inner.find_spec(name, *rest)
counting = Counting(sys.meta_path[-1])
sys.meta_path[:] = sys.meta_path[:-1] + [counting]
sys.path_importer_cache.clear()
import colorsys
print(counting.names)
