import multiprocessing as mp
class Own: value = 3
def work(x): return x * 2, mp.current_process().name != "MainProcess"
if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        c = mp.get_context(method)
        with c.Pool(2, maxtasksperchild=1) as pool: print(method, pool.map(work, range(3)))
    with mp.get_context("spawn").Manager() as manager:
        d = manager.dict(); d["a"] = [1]; print(dict(d))
    print(mp.active_children(), mp.get_start_method())
