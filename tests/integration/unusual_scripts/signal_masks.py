import os, signal
print(sorted(signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})))
os.kill(os.getpid(), signal.SIGUSR1)
print(signal.sigpending() == {signal.SIGUSR1}, signal.sigwait({signal.SIGUSR1}) == signal.SIGUSR1)
print([number for number in signal.valid_signals() if signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler)])
