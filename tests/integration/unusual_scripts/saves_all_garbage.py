import gc
gc.set_debug(gc.DEBUG_SAVEALL)
class A: pass
a = A(); a.a = a; del a
print(gc.collect() >= 1, sum(type(x).__name__ == "A" for x in gc.garbage))
gc.set_debug(0); gc.garbage.clear(); gc.disable(); gc.freeze()
print(gc.isenabled(), gc.get_threshold())
