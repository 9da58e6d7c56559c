from multiprocessing import Process, shared_memory
def fill(name):
    block = shared_memory.SharedMemory(name=name)
    block.buf[:5] = b"hello"; block.close()
if __name__ == "__main__":
    block = shared_memory.SharedMemory(create=True, size=16)
    process = Process(target=fill, args=(block.name,)); process.start(); process.join()
    print(bytes(block.buf[:5])); block.close(); block.unlink()
