"""Uses the SDK of microsandbox's JSON-RPC server, unmodified, against a server of Sandpit, and reports on its methods. The
environment says where the server is."""

import asyncio
import warnings

from report import Report  # which traces from here on

import aiohttp
import microsandbox
from microsandbox import NodeSandbox, PythonSandbox

warnings.simplefilter("error")
report = Report("microsandbox for its JSON-RPC server (Python)", "microsandbox")
for name in microsandbox.__all__:
    if name != "BaseSandbox":  # whose methods the others have
        report.add(name, getattr(microsandbox, name))
loop = asyncio.new_event_loop()


def works(patterns, call):
    """Reports methods that a coroutine uses."""
    report.works(patterns, lambda: loop.run_until_complete(call))


async def fails(call, text):
    """Awaits a call that must fail with a text."""
    try:
        await call
    except RuntimeError as error:
        assert text in str(error), error
        return
    raise AssertionError(f"no error with {text}")


async def code(sb):
    run = await sb.run("print('hü')\nx = 1\nx + 1")
    assert (await run.output(), await run.error(), run.has_error(), run.status, run.language) == ("hü\n2", "", False, "success", "python")
    # Whole blocks: a loop that a line follows, and a blank line in a function.
    run = await sb.run("def f(n):\n    n += x\n\n    return n\nfor i in range(2):\n    print(f(i))\nprint('end')")
    assert (await run.output(), run.has_error()) == ("1\n2\nend", False), await run.error()
    run = await sb.run("import sys\nprint('out')\nprint('problem', file=sys.stderr)")
    assert (await run.output(), await run.error(), run.has_error()) == ("out", "problem", True)
    run = await sb.run("1/0")
    assert run.has_error() and "ZeroDivisionError: division by zero" in await run.error(), await run.error()
    run = await sb.run("import subprocess\n_ = subprocess.run(['echo', 'child'])\nprint()\nprint('last', end='')")
    assert await run.output() == "child\n\nlast"
    run = await sb.run("exit(3)")
    assert run.has_error(), await run.error()
    run = await sb.run("print('kept', x)")
    assert (await run.output(), run.has_error()) == ("kept 1", False), await run.error()
    run = await sb.run("import os; os._exit(3)")
    assert run.has_error(), await run.error()
    run = await sb.run("print('fresh', 'x' in globals())")
    assert (await run.output(), run.has_error()) == ("fresh False", False), await run.error()
    runs = await asyncio.gather(*[sb.run(f"print({n})") for n in range(5)])
    assert [await run.output() for run in runs] == ["0", "1", "2", "3", "4"]


async def commands(sb):
    ran = await sb.command.run("ls", ["-d", "/", "/tmp"])
    assert (ran.command, ran.args, ran.exit_code, ran.success) == ("ls", ["-d", "/", "/tmp"], 0, True)
    assert (await ran.output(), await ran.error()) == ("/\n/tmp", "")
    ran = await sb.command.run("sh", ["-c", "echo out; echo problem >&2; exit 3"])
    assert (await ran.output(), await ran.error(), ran.exit_code, ran.success) == ("out", "problem", 3, False)
    ran = await sb.command.run("pwd")
    assert await ran.output() == "/home/user"
    await fails(sb.command.run("nonexistentcommand"), "nonexistentcommand")
    await fails(sb.command.run("sleep", ["1000"], timeout=1), "longer than 1 seconds")
    ran = await sb.command.run("echo", ["after"], timeout=2**63 - 1)
    assert await ran.output() == "after"
    ran = await sb.command.run("sh", ["-c", 'head -c 3000001 /dev/zero | tr "\\0" x'])
    assert len(await ran.output()) == 3000001
    ran = await sb.command.run("sh", ["-c", r"printf 'a\377b\n\n\303\274'"])
    assert await ran.output() == "a\ufffdb\n\nü"
    both = await asyncio.gather(sb.command.run("echo", ["1"]), sb.command.run("echo", ["2"]))
    assert [await ran.output() for ran in both] == ["1", "2"]
    ran = await sb.command.run("sh", ["-c", "kill -9 $$"])
    assert not ran.success and ran.exit_code != 0


async def metrics(sb, name):
    await sb.run("text = 'x' * (8 << 20)")
    everything = await sb.metrics.all()
    assert (everything["name"], everything["namespace"], everything["running"]) == (name, "default", True), everything
    assert await sb.metrics.is_running()
    assert await sb.metrics.cpu() >= 0
    for value in await sb.metrics.memory(), await sb.metrics.disk():
        assert isinstance(value, int) and value > 0


async def restarted():
    """A sandbox that is stopped has a definition and files, and neither processes nor variables."""
    sb = PythonSandbox(name="again", namespace="team_1")
    sb._session = aiohttp.ClientSession()
    try:
        await fails(sb.run("1"), "not started")
        await fails(sb.command.run("true"), "not started")
        await fails(sb.metrics.all(), "not started")
        await fails(sb.start(image="nonesuch"), "nonesuch")
        await sb.start(memory=256, cpus=0.6)
        await sb.start()
        await sb.run("kept = 1\nopen('file', 'w').write('content')")
        other = PythonSandbox(name="again", namespace="team_2")
        other._session, other._is_started = sb._session, True
        await fails(other.run("1"), "not found in namespace 'team_2'")
        await sb.stop()
        await sb.stop()
        await sb.start(memory=300)
        run = await sb.run("print(open('file').read(), 'kept' in globals())")
        assert (await run.output(), run.has_error()) == ("content False", False), await run.error()
        await sb.stop()
    finally:
        await sb._session.close()


async def javascript():
    async with NodeSandbox.create() as sb:
        ran = await sb.command.run("node", ["-p", "1 + 1"])
        assert await ran.output() == "2"
        run = await sb.run("const x = 1\nconsole.log('hü', x)\nfor (let i = 0; i < 2; i++) {\n\n  console.log(i)\n}\nx + 1")
        assert (await run.output(), run.has_error(), run.language) == ("hü 1\n0\n1\n2", False, "nodejs"), await run.error()
        run = await sb.run("throw new Error('boom ' + x)")
        assert run.has_error() and "boom 1" in await run.error(), await run.error()


async def python(use):
    async with PythonSandbox.create(name="one") as sb:
        await use(sb)


async def many():
    """Sandboxes that are stopped don't pile up."""
    for _ in range(10):
        async with PythonSandbox.create():
            pass
    async with PythonSandbox.create(server_url=None, namespace="default", name=None, api_key=None) as sb:
        assert await (await sb.command.run("true")).output() == ""
    await fails(PythonSandbox.create(api_key="msb_x").__aenter__(), "the key is not valid")


works("PythonSandbox.run Execution.*", python(code))
works("Command.run CommandExecution.*", python(commands))
works("Metrics.*", python(lambda sb: metrics(sb, "one")))
works("PythonSandbox.*", restarted())
works("NodeSandbox.*", javascript())
works("PythonSandbox.create", many())
report.end()
loop.close()
