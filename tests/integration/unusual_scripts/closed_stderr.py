import sys
sys.stderr.close()
print("done")
