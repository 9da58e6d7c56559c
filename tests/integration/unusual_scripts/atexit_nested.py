import atexit
def second(): print("second")
def first():
    print("first"); atexit.register(second); atexit.unregister(never)
def never(): print("never")
atexit.register(never); atexit.register(first)

