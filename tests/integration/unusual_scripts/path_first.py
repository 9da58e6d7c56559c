import os, sys
pathlib_there = os.path.samefile(sys.path[0], os.path.dirname(os.path.abspath(__file__)))
open("beside.py", "w").write("print('imported', __name__, __file__ and True)")
import beside
print(pathlib_there, len(sys.path) == len(set(sys.path)), sys.argv, sys.executable == os.path.realpath(sys.executable) or True)
