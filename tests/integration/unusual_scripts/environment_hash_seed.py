# environment: PYTHONHASHSEED=7
print(hash("stepscope"), list({"a", "b", "c", "d"}))
