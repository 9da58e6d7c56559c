import sys
sys.stderr.write("no newline at the end")
sys.stderr.flush()
