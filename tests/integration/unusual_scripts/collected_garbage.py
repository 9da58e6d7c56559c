import gc, sys, weakref
gc.collect(); gc.set_debug(gc.DEBUG_SAVEALL)
class Node: pass
node = Node(); node.self = node; reference = weakref.ref(node); del node
gc.collect()
kinds = sorted({type(one).__module__ for one in gc.garbage if "stepscope" in type(one).__module__})
print(any(isinstance(one, Node) for one in gc.garbage), kinds, reference() is not None, gc.get_count()[2] >= 0, gc.callbacks, gc.get_freeze_count())
gc.set_debug(0); gc.garbage.clear()
