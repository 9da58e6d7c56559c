import os, sys
if len(sys.argv) == 1:
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, sys.argv[0], "again"])
print("after exec", sys.argv[1:])
