import asyncio
async def fail(): raise ValueError("never awaited")
async def main():
    task = asyncio.create_task(fail())
    await asyncio.sleep(0.01)
    print(type(task.exception()).__name__, await asyncio.gather(asyncio.sleep(0, 1), asyncio.sleep(0, 2)))
asyncio.run(main())
