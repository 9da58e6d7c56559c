import asyncio
async def agen():
    try:
        yield 1
    finally:
        print("async generator closed")
async def main():
    generator = agen()
    await generator.__anext__()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: print(context["message"]))
asyncio.run(main())
async def never(): pass
left = never()
