import os, signal, socket
reader, writer = socket.socketpair()
writer.setblocking(False)
print(signal.set_wakeup_fd(writer.fileno()))
signal.signal(signal.SIGUSR2, lambda *_: None)
os.kill(os.getpid(), signal.SIGUSR2)
print(reader.recv(1) == bytes([signal.SIGUSR2]))
signal.set_wakeup_fd(-1)
