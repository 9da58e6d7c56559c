import os
reader, writer = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open("daemon.txt", "w").write("detached")
        os.write(writer, b"x")
        os._exit(0)
    os._exit(0)
os.wait()
print(os.read(reader, 1))
