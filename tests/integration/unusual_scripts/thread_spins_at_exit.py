import threading, time, sys
def spin():
    while True: sum(range(100))
for _ in range(3): threading.Thread(target=spin, daemon=True).start()
time.sleep(0.1); print("over")
