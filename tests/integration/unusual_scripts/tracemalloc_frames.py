# flags: -X tracemalloc=3
import tracemalloc
before = tracemalloc.take_snapshot()
kept = [bytes(1000) for _ in range(100)]
stats = tracemalloc.take_snapshot().compare_to(before, "filename")
print([s.count_diff for s in stats if s.traceback[0].filename.endswith("script.py")][0] >= 100, tracemalloc.get_traceback_limit())
