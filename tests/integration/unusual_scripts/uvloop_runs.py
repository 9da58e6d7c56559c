# needs: uvloop
import asyncio, uvloop
async def main():
    process = await asyncio.create_subprocess_exec("true")
    print(await process.wait(), type(asyncio.get_running_loop()).__module__)
    await asyncio.gather(*(asyncio.sleep(0.01) for _ in range(3)))
uvloop.run(main())
