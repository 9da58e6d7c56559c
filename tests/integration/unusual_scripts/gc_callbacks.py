import gc
print(gc.callbacks, gc.get_debug(), gc.get_freeze_count(), gc.isenabled(), gc.garbage)
gc.callbacks.append(lambda phase, info: print(phase, info["generation"]))
gc.collect(); gc.collect(0)
gc.callbacks.clear(); gc.disable()
