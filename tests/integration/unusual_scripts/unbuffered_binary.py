import os, sys
sys.stdout.write("a"); os.write(1, b"b\n"); sys.stdout.flush()
sys.stdout.buffer.write(b"\xff\n"); sys.stdout.buffer.flush()
print(sys.stdout.line_buffering, sys.stdout.isatty(), sys.stdin.isatty(), sys.stderr.line_buffering, sys.stdout.write_through)
print(os.fstat(0).st_mode & 0o170000 == 0o10000)
