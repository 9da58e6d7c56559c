# flags: -X dev
import sys, warnings
print(sys.flags.dev_mode, sys.flags.utf8_mode, [entry[:3:2] for entry in warnings.filters][:1])
def leak(): open(__file__)
leak()
