import os, sys
child = os.fork()
if child == 0:
    print("child", flush=True)
    sys.exit(3)
print("parent saw", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
