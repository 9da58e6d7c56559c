import sys
def trace(frame, event, arg):
    print(event, frame.f_code.co_name)
sys.settrace(trace)
