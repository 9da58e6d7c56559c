import sys
def profile(frame, event, argument):
    print(event, frame.f_code.co_name)
sys.setprofile(profile)
