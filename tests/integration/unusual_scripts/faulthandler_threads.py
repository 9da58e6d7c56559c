import faulthandler, threading, signal, os
stop = threading.Event()
threads = [threading.Thread(target=stop.wait) for _ in range(2)]
for thread in threads: thread.start()
with open("dump", "w+") as file:
    faulthandler.register(signal.SIGUSR2, file, all_threads=True)
    os.kill(os.getpid(), signal.SIGUSR2)
    faulthandler.unregister(signal.SIGUSR2)
    file.seek(0); text = file.read()
os.unlink("dump")
print(text.count("Thread 0x"), text.count("most recent call first"), text.count(" in wait"))
stop.set()
