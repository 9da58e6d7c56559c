import builtins, os, sys, threading
print(sys.excepthook is sys.__excepthook__, sys.displayhook is sys.__displayhook__, sys.unraisablehook is sys.__unraisablehook__)
print(threading.excepthook is threading.__excepthook__, sys.breakpointhook is sys.__breakpointhook__, hasattr(sys, "ps1"))
print(builtins.__import__, type(os.fork).__name__, type(os._exit).__name__, type(open).__name__, exit, [name for name in ("numpy", "torch", "jax") if name in sys.modules])
