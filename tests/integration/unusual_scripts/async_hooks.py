import asyncio, sys
async def agen():
    try:
        yield 1; yield 2
    finally: print("closed")
async def main():
    loop = asyncio.get_running_loop()
    print(loop.get_debug(), loop.slow_callback_duration, type(loop).__name__, sys.get_asyncgen_hooks()[0] is not None)
    async for x in agen(): break
    loop.set_debug(True)
    print(await asyncio.gather(asyncio.to_thread(lambda: 3), asyncio.sleep(0, 4)))
    print(len(asyncio.all_tasks()))
asyncio.run(main())
print(sys.get_asyncgen_hooks())
