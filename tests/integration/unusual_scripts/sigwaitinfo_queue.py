import os, signal
wanted = {signal.SIGRTMIN + 3, signal.SIGRTMIN + 4}
signal.pthread_sigmask(signal.SIG_BLOCK, wanted)
for number in (signal.SIGRTMIN + 4, signal.SIGRTMIN + 3, signal.SIGRTMIN + 3):
    os.kill(os.getpid(), number)
for _ in range(3):
    info = signal.sigwaitinfo(wanted)
    print(info.si_signo - signal.SIGRTMIN, info.si_code, info.si_pid == os.getpid(), info.si_uid == os.getuid())
print(signal.sigtimedwait(wanted, 0.01), signal.sigpending())
