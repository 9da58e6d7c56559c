import gc, random, sys
random.seed(3)
print(gc.get_threshold(), gc.isenabled(), random.random(), sys.getrecursionlimit(), sys.getswitchinterval())
