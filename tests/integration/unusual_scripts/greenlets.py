# needs: greenlet
import greenlet
def ping(): print("ping"); pong.switch(); print("ping again")
def other(): print("pong"); first.switch()
first, pong = greenlet.greenlet(ping), greenlet.greenlet(other)
first.switch()
