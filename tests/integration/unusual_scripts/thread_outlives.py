import threading, time
def late(): time.sleep(0.1); print("late")
threading.Thread(target=late).start()
print("main ends", threading.active_count())
