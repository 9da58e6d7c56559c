# needs: gevent
from gevent import monkey
monkey.patch_all()
import gevent, threading, time
def work(number):
    time.sleep(0.01 * (3 - number)); print("greenlet", number)
gevent.joinall([gevent.spawn(work, number) for number in range(3)])
thread = threading.Thread(target=print, args=("a green thread",)); thread.start(); thread.join()
print(type(threading.current_thread()).__name__, threading.active_count())
