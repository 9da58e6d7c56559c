# environment: PYTHONIOENCODING=ascii:backslashreplace PYTHONUNBUFFERED=1 PYTHONWARNINGS=always
import sys, warnings
print("\u4f60", sys.stdout.encoding)
for _ in range(2):
    warnings.warn("each time")
