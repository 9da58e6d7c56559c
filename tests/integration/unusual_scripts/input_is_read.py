import sys
print(repr(sys.stdin.read()), sys.stdin.fileno())
