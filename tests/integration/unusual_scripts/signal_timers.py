import signal, time
class Late(Exception): pass
def late(number, frame): raise Late(signal.Signals(number).name)
for kind, number in ((signal.ITIMER_REAL, signal.SIGALRM), (signal.ITIMER_VIRTUAL, signal.SIGVTALRM), (signal.ITIMER_PROF, signal.SIGPROF)):
    print(signal.getitimer(kind), signal.getsignal(number))
    signal.signal(number, late)
    signal.setitimer(kind, 0.02)
    try:
        while True: sum(range(1000))
    except Late as error:
        print(error)
