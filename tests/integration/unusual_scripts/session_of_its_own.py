import os
if os.getpgrp() != os.getpid():
    os.setsid()
print(os.getsid(0) == os.getpid())
