# environment: PYTHONINSPECT=1
# input: print(x + 1, __name__)\nimport sys; sys.exit(5)\n
x = 41
print("ran")
