# needs: eventlet
import eventlet
eventlet.monkey_patch()
import threading, time
pool = eventlet.GreenPool()
print(list(pool.imap(lambda number: (time.sleep(0.01), number)[1], range(3))))
