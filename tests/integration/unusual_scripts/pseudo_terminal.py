import os, pty
child, terminal = pty.fork()
if child == 0:
    print(os.isatty(0), os.isatty(1), flush=True)
    os._exit(0)
text = b""
while not text.endswith(b"\n"):  # a read may end within a line
    text += os.read(terminal, 100)
print(text); os.waitpid(child, 0)
