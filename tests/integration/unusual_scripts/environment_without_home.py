# environment: HOME= USER= TMPDIR=/nonexistent XDG_CACHE_HOME=/proc/nowhere TERM=dumb TZ=Nowhere/Odd
import os, tempfile, time
print(repr(os.environ["HOME"]), os.environ["TERM"], time.tzname)
print(tempfile.gettempdir())
