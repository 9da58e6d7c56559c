import asyncio, sys
async def main():
    process = await asyncio.create_subprocess_exec(sys.executable, "-S", "-c", "print(input()); raise SystemExit(3)", stdin=-1, stdout=-1)
    out, _ = await process.communicate(b"through a pipe\n")
    print(out, process.returncode)
    async def numbers():
        for number in range(3): yield number
    print([number async for number in numbers()])
asyncio.run(main())
