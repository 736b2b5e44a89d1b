"""The SDK of microsandbox, unmodified, with its cloud's API."""

import asyncio
import itertools
import time

from microsandbox import Sandbox
from turns import check, content, serve

loop = asyncio.new_event_loop()
count = itertools.count()


async def succeed(sandbox):
    check((await sandbox.exec("true")).exit_code == 0, "the command has failed")


async def make():
    sandbox = await Sandbox.create(f"py-{next(count)}", image="microsandbox/python", memory=256, cpus=1)
    await succeed(sandbox)
    return sandbox


async def remove(sandbox):
    await sandbox.stop()
    await Sandbox.remove(await name_of(sandbox))


async def name_of(sandbox):
    name = sandbox.name
    return await name if asyncio.iscoroutine(name) or asyncio.isfuture(name) else name


async def once(call):
    start = time.perf_counter()
    value = await call()
    return (time.perf_counter() - start) * 1000, value


async def create(n):
    made = await asyncio.gather(*(once(make) for _ in range(n)), return_exceptions=True)
    good = [m for m in made if not isinstance(m, BaseException)]
    await asyncio.gather(*(remove(sandbox) for _, sandbox in good))
    for m in made:
        if isinstance(m, BaseException):
            raise m
    return [took for took, _ in good]


class Operations:
    def open(self):
        self.sandbox = loop.run_until_complete(make())

    def close(self):
        loop.run_until_complete(remove(self.sandbox))

    def create(self, n):
        return loop.run_until_complete(create(n))

    def exec(self):
        return [loop.run_until_complete(once(lambda: succeed(self.sandbox)))[0]]

    def up(self, size):
        data = content(size)
        return [loop.run_until_complete(once(lambda: self.sandbox.fs.write("/tmp/data", data)))[0]]

    def down(self, size):
        took, data = loop.run_until_complete(once(lambda: self.sandbox.fs.read("/tmp/data")))
        check(len(data) == size, f"{len(data)} bytes arrived of {size}")
        return [took]


serve(Operations())
