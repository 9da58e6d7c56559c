import os
child = os.fork()
if child == 0:
    raise KeyError("in the child")
print("parent saw", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
