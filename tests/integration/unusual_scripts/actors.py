from multiprocessing import get_context
from multiprocessing.managers import BaseManager
class Counter:
    def __init__(self): self.total = 0
    def add(self, number): self.total += number; return self.total
class Actors(BaseManager): pass
Actors.register("Counter", Counter)
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with Actors(ctx=get_context(method)) as actors:
            counter = actors.Counter()
            print(method, [counter.add(number) for number in range(4)], type(counter).__name__)
