import mmap, os
shared = mmap.mmap(-1, 4096)
child = os.fork()
if child == 0:
    shared[:5] = b"child"
    os._exit(0)
os.waitpid(child, 0)
print(shared[:5])
with open("mapped.bin", "w+b") as file:
    file.truncate(4096)
    with mmap.mmap(file.fileno(), 0) as mapped: mapped[10:14] = b"data"
