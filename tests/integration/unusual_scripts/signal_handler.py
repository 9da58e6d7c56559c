import os, signal
signal.signal(signal.SIGUSR1, lambda number, frame: print("got", number, frame.f_code.co_name))
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.getsignal(signal.SIGINT) is signal.default_int_handler, signal.getsignal(signal.SIGPIPE))
