# flags: -u -B -X utf8
import os, sys
print(sys.flags.utf8_mode, sys.flags.dont_write_bytecode, sys.stdout.write_through, "caf\u00e9")
print("not flushed", end="")
os._exit(0)
