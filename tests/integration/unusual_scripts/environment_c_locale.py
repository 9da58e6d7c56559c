# environment: LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0
import locale, sys
print(sys.stdout.encoding, sys.getfilesystemencoding(), locale.getlocale(), locale.localeconv()["decimal_point"])
print("\u4f60")
