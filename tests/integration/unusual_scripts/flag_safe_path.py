# flags: -I
import os, sys
print(sys.flags.isolated, os.getcwd() in sys.path, "" in sys.path, sys.argv)
