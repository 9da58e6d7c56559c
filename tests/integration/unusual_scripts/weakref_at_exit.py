import atexit, weakref
class Thing: pass
first, second = Thing(), Thing()
atexit.register(print, "atexit")
weakref.finalize(first, print, "finalize first")
weakref.finalize(second, print, "finalize second").atexit = False
callback = weakref.ref(second, lambda reference: print("second died", reference() is None))
del second
