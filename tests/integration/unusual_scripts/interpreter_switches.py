import sys, threading
sys.setswitchinterval(0.001)
sys.setrecursionlimit(1234)
threading.stack_size(1 << 20)
print(sys.getswitchinterval(), sys.getrecursionlimit(), threading.stack_size(), sys.getprofile(), sys.gettrace())
print(sys.get_asyncgen_hooks(), sys.get_coroutine_origin_tracking_depth(), sys.dont_write_bytecode)
