import sys
class Thing: pass
thing = Thing()
def count(argument): return sys.getrefcount(argument)
print(sys.getrefcount(thing), count(thing), sys.getrefcount(Thing))
