import os, select, signal
child = os.fork()
if not child:
    signal.pause()
    os._exit(3)
fd = os.pidfd_open(child)
print(fd, select.select([fd], [], [], 0.01)[0] == [])
signal.pidfd_send_signal(fd, signal.SIGTERM)
select.select([fd], [], [])
info = os.waitid(os.P_PIDFD, fd, os.WEXITED)
print(info.si_status, info.si_code, info.si_pid == child)
