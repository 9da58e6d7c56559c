import sys
print(sys.stdout.encoding, sys.stdout.errors, sys.stdout.line_buffering, sys.stdout.write_through, sys.stdout.isatty())
sys.stdout.reconfigure(encoding="latin-1", newline="\r\n", line_buffering=True)
print("caf\u00e9".encode("latin-1").decode("ascii", "replace").replace("\ufffd", "?"))
