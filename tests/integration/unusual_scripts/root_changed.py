import os
if os.getuid() == 0:
    os.mkdir("jail"); os.chroot("jail"); os.chdir("/")
print(os.getcwd() == "/" or os.getuid())
