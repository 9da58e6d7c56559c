import asyncio, contextvars, decimal
print(list(contextvars.copy_context()))
name = contextvars.ContextVar("name", default="none")
async def child(value):
    name.set(value)
    await asyncio.sleep(0)
    return name.get()
async def main(): return await asyncio.gather(*(asyncio.create_task(child(n)) for n in range(3)))
print(asyncio.run(main()), name.get(), decimal.getcontext().prec)
