# flags: -bb
print(b"a" == b"a")
print(b"a" == "a")
