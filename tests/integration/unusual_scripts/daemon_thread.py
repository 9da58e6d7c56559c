import threading, time
threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
print(threading.current_thread().name, threading.main_thread() is threading.current_thread())
