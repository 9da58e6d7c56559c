import bdb
class Debugger(bdb.Bdb):
    def user_line(self, frame):
        print(frame.f_code.co_name, frame.f_lineno)
        self.set_step()
def work():
    value = 1
    return value
Debugger().runcall(work)
