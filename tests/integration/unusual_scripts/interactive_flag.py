# flags: -i -q
# input: print(x + 1, __name__, sys.flags.interactive)\nraise SystemExit(6)\n
import sys
x = 41
print("ran", hasattr(sys, "ps1"))
