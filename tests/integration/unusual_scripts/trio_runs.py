# needs: trio
import trio
turns = []
async def child(number):
    await turns[number].wait()
    print("child", number)
    turns[number + 1].set()
async def main():
    turns[:] = [trio.Event() for _ in range(4)]
    turns[0].set()
    async with trio.open_nursery() as nursery:
        for number in range(3): nursery.start_soon(child, number)
    print(await trio.to_thread.run_sync(lambda: "from a thread"))
    raise KeyError("out of trio")
try:
    trio.run(main)
except KeyError as error:
    print(error)
