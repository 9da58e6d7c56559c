import sys
def trace(frame, event, arg):
    if "/capture/" in frame.f_code.co_filename or "stepscope" in frame.f_code.co_filename:
        print("traced", frame.f_code.co_filename, frame.f_code.co_name)
    return trace
def work(): return 1
sys.settrace(trace)
work()
