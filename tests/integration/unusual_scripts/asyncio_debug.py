import asyncio, logging
logging.basicConfig(format="%(levelname)s %(name)s", level=logging.ERROR)
async def main():
    loop = asyncio.get_running_loop()
    print(loop.get_debug(), type(loop).__name__)
    loop.call_exception_handler({"message": "reported"})
asyncio.run(main(), debug=True)
