import multiprocessing, sys
def leave(): sys.exit(6)
if __name__ == "__main__":
    process = multiprocessing.get_context("fork").Process(target=leave)
    process.start(); process.join()
    print(process.exitcode)
