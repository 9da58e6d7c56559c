import faulthandler, time
with open("log", "w+") as f:
    faulthandler.dump_traceback_later(0.05, file=f); time.sleep(0.3); faulthandler.cancel_dump_traceback_later()
    f.seek(0); text = f.read()
print("Timeout" in text, "script.py" in text)
import os; os.remove("log")
