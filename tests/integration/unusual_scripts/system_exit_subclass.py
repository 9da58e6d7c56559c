class Leave(SystemExit):
    code = property(lambda self: 21)
raise Leave("text")
