import sys
depth = 0
f = sys._getframe()
while f: depth, f = depth + 1, f.f_back
sys.setrecursionlimit(depth + 30)
def down(n): return down(n - 1) if n else "bottom"
print(down(15))
