import sys
print("caf\u00e9", file=sys.stderr)
raise ValueError("\udce9 lone surrogate, \u4f60\u597d")
