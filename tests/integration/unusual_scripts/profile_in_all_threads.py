import sys, threading
seen = []
def note(frame, event, arg):
    if frame.f_code.co_name == "work": seen.append(event)
def work(): return len("x")
def loop():
    ready.set(); go.wait(); work()
ready, go = threading.Event(), threading.Event()
thread = threading.Thread(target=loop); thread.start(); ready.wait()
getattr(threading, "setprofile_all_threads", threading.setprofile)(note)
getattr(threading, "settrace_all_threads", threading.settrace)(lambda frame, event, arg: None)
go.set(); thread.join(); work()
print(seen, threading.getprofile() is note if hasattr(threading, "getprofile") else None)
getattr(threading, "setprofile_all_threads", threading.setprofile)(None)
