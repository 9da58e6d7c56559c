# needs: trio
import trio
async def child(number): await trio.sleep(0.01 * number); print("child", number)
async def main():
    async with trio.open_nursery() as nursery:
        for number in range(3): nursery.start_soon(child, number)
    print(await trio.to_thread.run_sync(lambda: "from a thread"))
    raise KeyError("out of trio")
try:
    trio.run(main)
except KeyError as error:
    print(error)
