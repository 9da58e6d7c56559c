import locale, os, time, sys
os.environ["TZ"] = "Asia/Kathmandu"; time.tzset()
print(time.tzname, time.timezone, time.strftime("%H", time.gmtime(0)))
print(locale.setlocale(locale.LC_ALL, "C"), locale.getpreferredencoding(False), sys.flags.utf8_mode)
print(locale.setlocale(locale.LC_NUMERIC, ""), locale.localeconv()["decimal_point"])
