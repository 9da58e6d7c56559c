def deep(number): return deep(number + 1)
try:
    deep(0)
except RecursionError as error:
    print(error)
