import os
os.register_at_fork(before=lambda: print("before", flush=True), after_in_parent=lambda: print("parent", flush=True), after_in_child=lambda: os.write(1, b""))
child = os.fork()
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
