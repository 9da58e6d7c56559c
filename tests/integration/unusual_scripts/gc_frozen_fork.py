import gc, os
gc.disable(); gc.collect(); gc.freeze()
child = os.fork()
if child == 0:
    print(gc.get_freeze_count() > 0, gc.isenabled(), flush=True)
    gc.unfreeze(); gc.collect()
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
