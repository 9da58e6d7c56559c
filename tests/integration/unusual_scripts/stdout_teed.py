import sys
class Tee:
    def __init__(self, *streams): self.streams = streams
    def write(self, text):
        for stream in self.streams: stream.write(text)
    def flush(self):
        for stream in self.streams: stream.flush()
log = open("log.txt", "w")
sys.stdout = Tee(sys.stdout, log)
sys.stderr = Tee(sys.stderr, log)
print("to both")
raise ValueError("into the log too")
