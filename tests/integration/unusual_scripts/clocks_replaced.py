import datetime, os, time
calls = []
for name in ("time", "monotonic", "perf_counter", "perf_counter_ns", "time_ns", "process_time", "sleep"):
    setattr(time, name, lambda *arguments, name=name: calls.append(name) or 0)
import json, threading
print(json.dumps({"a": 1}), calls, os.times().user >= 0, datetime.datetime(2020, 1, 1).timestamp() > 0)
print(threading.Event().wait, calls) if False else print(len(calls))
