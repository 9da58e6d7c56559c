import sys
print("one"); sys.stdout.flush()
sys.stdout = sys.stderr = sys.stdin = None
print("two")
import warnings; warnings.warn("three")
