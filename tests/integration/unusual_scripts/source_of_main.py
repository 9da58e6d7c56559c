import inspect, linecache, sys, traceback
class Shape:
    def area(self): return 1
def twice(number): return 2 * number
print(inspect.getsource(Shape.area), inspect.getsource(twice), inspect.getsourcefile(Shape), inspect.getfile(twice))
print(inspect.getmodule(twice) is sys.modules["__main__"], linecache.getline(__file__, 4))
try:
    twice(None)
except TypeError:
    traceback.print_exc()
