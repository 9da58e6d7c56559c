import os
log = os.open("log.txt", os.O_WRONLY | os.O_CREAT)
os.dup2(log, 2)
os.write(2, b"only this\n")
