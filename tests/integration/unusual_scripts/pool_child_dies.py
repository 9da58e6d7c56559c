import os
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
def die(): os._exit(1)
if __name__ == "__main__":
    with ProcessPoolExecutor(1) as pool:
        try:
            pool.submit(die).result()
        except BrokenProcessPool as error:
            print(type(error).__name__)
