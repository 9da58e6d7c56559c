import __future__
code = compile("def f(x: int): pass", "c", "exec")
print(code.co_flags & __future__.annotations.compiler_flag)
def f(x: int) -> str: pass
print(f.__annotations__)
exec("def g(x: int): pass"); print(g.__annotations__)
