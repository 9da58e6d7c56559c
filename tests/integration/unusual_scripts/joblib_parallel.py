# needs: joblib
from joblib import Parallel, delayed
def square(number): return number * number
if __name__ == "__main__":
    for backend in ("loky", "multiprocessing", "threading"):
        print(backend, Parallel(n_jobs=2, backend=backend)(delayed(square)(number) for number in range(4)))
