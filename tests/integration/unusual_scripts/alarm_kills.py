import signal, time
print("waits", flush=True)
signal.alarm(1)
time.sleep(30)
