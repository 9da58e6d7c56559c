import atexit, sys
atexit.register(lambda: print(sys.last_type.__name__, sys.last_value, sys.last_traceback.tb_lineno))
raise ValueError("looked at later")
