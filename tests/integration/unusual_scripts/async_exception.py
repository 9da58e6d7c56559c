import ctypes, threading, time
def loop():
    try:
        while True: time.sleep(0.01)
    except KeyError: print("KeyError in thread")
t = threading.Thread(target=loop); t.start(); time.sleep(0.1)
told = ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(t.ident), ctypes.py_object(KeyError))
t.join(); print(told)
ctypes.pythonapi.PyErr_SetInterrupt()
try:
    for _ in range(100): time.sleep(0.01)
except KeyboardInterrupt: print("interrupted")
