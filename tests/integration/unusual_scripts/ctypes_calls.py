import ctypes
ctypes.CDLL(None).puts(b"from C")
ctypes.CDLL(None).fflush(None)
Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)
print(Callback(lambda number: number + 1)(4))
ctypes.pythonapi.Py_GetVersion.restype = ctypes.c_char_p
print(ctypes.pythonapi.Py_IsInitialized())
