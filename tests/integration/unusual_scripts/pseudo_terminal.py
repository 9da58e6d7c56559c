import os, pty
child, terminal = pty.fork()
if child == 0:
    print(os.isatty(0), os.isatty(1), flush=True)
    os._exit(0)
print(os.read(terminal, 100)); os.waitpid(child, 0)
