from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
def twice(number): return 2 * number
if __name__ == "__main__":
    with ThreadPoolExecutor(2) as threads, ProcessPoolExecutor(1) as processes:
        print(list(threads.map(twice, range(3))), list(processes.map(twice, range(3))))
