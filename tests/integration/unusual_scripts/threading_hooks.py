import threading
seen = []
def trace(frame, event, argument):
    seen.append((event, frame.f_code.co_name))
threading.setprofile(trace)
def work(): return 1
thread = threading.Thread(target=work)
thread.start(); thread.join()
threading.setprofile(None)
print([name for event, name in seen if name == "work"], threading.gettrace(), threading.getprofile())
