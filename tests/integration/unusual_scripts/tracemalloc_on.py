import tracemalloc
print(tracemalloc.is_tracing(), tracemalloc.get_traceback_limit())
tracemalloc.start(5)
kept = [bytes(1000) for _ in range(100)]
snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, __file__)])
print([(item.traceback[0].lineno, item.count) for item in snapshot.statistics("lineno") if item.size > 50_000])
tracemalloc.stop()
