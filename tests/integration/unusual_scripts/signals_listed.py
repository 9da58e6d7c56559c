import faulthandler, signal
print([(number.name, str(signal.getsignal(number))) for number in sorted(signal.valid_signals()) if isinstance(number, signal.Signals) and signal.getsignal(number) not in (signal.SIG_DFL, signal.SIG_IGN, None)])
print(signal.getitimer(signal.ITIMER_REAL), signal.getitimer(signal.ITIMER_PROF), signal.pthread_sigmask(signal.SIG_BLOCK, []), faulthandler.is_enabled(), signal.set_wakeup_fd(-1))
