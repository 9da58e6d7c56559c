import sys
class Odd:
    def __str__(self): return "odd object"
sys.exit(Odd())
