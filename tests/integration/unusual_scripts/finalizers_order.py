import atexit, weakref, threading
class A: pass
a, b = A(), A()
weakref.finalize(a, print, "a"); weakref.finalize(b, print, "b").atexit = False
atexit.register(print, "exit")
threading._register_atexit(print, "threads are over")
class D:
    def __del__(self): print("deleted", __name__)
d = D()
