import multiprocessing
def show(text): print("child", text, __name__, flush=True)
if __name__ == "__main__":
    process = multiprocessing.get_context("forkserver").Process(target=show, args=("hello",))
    process.start(); process.join()
    print(process.exitcode)
