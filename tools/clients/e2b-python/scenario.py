"""Uses the SDK of E2B, unmodified, against a server of Sandpit. The environment says where that is."""

import asyncio
import os
import sys

from e2b import (
    AsyncSandbox,
    CommandExitException,
    Sandbox,
    SandboxException,
    SandboxQuery,
    TimeoutException,
)


def fails(kind, call):
    """Returns the error of a call, which must be of a class."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def processes(sbx):
    run = sbx.commands.run('echo "$FOO $X"; pwd; echo problem >&2', envs={"X": "y"}, cwd="/tmp")
    assert (run.exit_code, run.stdout, run.stderr) == (0, "bär y\n/tmp\n", "problem\n"), run
    failed = fails(CommandExitException, lambda: sbx.commands.run("echo out; exit 3"))
    assert (failed.exit_code, failed.stdout, failed.error) == (3, "out\n", "exit status 3"), failed
    fails(TimeoutException, lambda: sbx.commands.run("sleep 1000", timeout=1))
    assert len(sbx.commands.run('head -c 3000001 /dev/zero | tr "\\0" x').stdout) == 3000001

    cat = sbx.commands.run("cat; echo end", background=True, stdin=True)
    sbx.commands.send_stdin(cat.pid, "liné\n")
    assert cat.pid in [p.pid for p in sbx.commands.list()]
    sbx.commands.close_stdin(cat.pid)
    assert cat.wait().stdout == "liné\nend\n"

    sleep = sbx.commands.run("sleep 1000", background=True)
    sleep.disconnect()
    assert sbx.commands.connect(sleep.pid).kill()
    assert not sbx.commands.kill(sleep.pid)


def life(sbx):
    info = sbx.get_info()
    assert (info.sandbox_id, info.template_id, info.metadata) == (sbx.sandbox_id, "base", {"suite": "py"}), info
    sbx.set_timeout(1200)
    assert (sbx.get_info().end_at - info.end_at).total_seconds() > 500
    found = Sandbox.list(query=SandboxQuery(metadata={"suite": "py"})).next_items()
    assert [s.sandbox_id for s in found] == [sbx.sandbox_id], found
    assert sbx.pause()
    assert not sbx.is_running()
    assert Sandbox.connect(sbx.sandbox_id).commands.run("echo back").stdout == "back\n"
    assert sbx.get_metrics()[0].mem_total > 0


async def asynchronous():
    sbx = await AsyncSandbox.create(timeout=600)
    try:
        assert (await sbx.commands.run("echo async")).stdout == "async\n"
    finally:
        assert await sbx.kill()


sandbox = Sandbox.create(metadata={"suite": "py"}, envs={"FOO": "bär"}, timeout=600)
try:
    processes(sandbox)
    life(sandbox)
finally:
    assert sandbox.kill()
assert not sandbox.is_running()
assert not Sandbox.kill(sandbox.sandbox_id)
fails(SandboxException, lambda: sandbox.commands.run("true"))
assert "no-such-template" in str(fails(SandboxException, lambda: Sandbox.create("no-such-template")))
asyncio.run(asynchronous())

# The threads of the SDK's transport can abort the interpreter when it ends in the usual way.
sys.stdout.flush()
os._exit(0)
