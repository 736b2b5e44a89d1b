"""Uses the SDK of E2B, unmodified, against a server of Sandpit. The environment says where that is."""

import asyncio
import os
import sys
import urllib.request

from e2b import (
    AsyncSandbox,
    CommandExitException,
    FileNotFoundException,
    FileType,
    FilesystemEventType,
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


def files(sbx):
    name = 'dir/ü "x" 100%.txt'
    assert sbx.files.write(name, "héllo").path == "/home/user/" + name
    assert sbx.files.read("/home/user/" + name) == "héllo"
    sbx.files.write_files([{"path": "/tmp/t/1", "data": "a"}, {"path": "/tmp/t/sub/2", "data": b"\x00\xff"}])
    assert sbx.files.read("/tmp/t/sub/2", format="bytes") == b"\x00\xff"
    sbx.files.write("/tmp/t/empty", "")
    assert sbx.files.read("/tmp/t/empty") == ""
    large = bytes(i * 7 % 256 for i in range(300_001))
    for gzip in False, True:
        sbx.files.write("/tmp/large", large, gzip=gzip)
        assert sbx.files.read("/tmp/large", format="bytes", gzip=gzip) == large
    assert b"".join(sbx.files.read("/tmp/large", format="stream")) == large
    listed = [(e.name, e.type) for e in sbx.files.list("/tmp/t")]
    assert listed == [("1", FileType.FILE), ("empty", FileType.FILE), ("sub", FileType.DIR)], listed
    assert (sbx.files.make_dir("/tmp/t/new"), sbx.files.make_dir("/tmp/t/new")) == (True, False)
    assert sbx.files.rename("/tmp/t/1", "/tmp/t/new/one").path == "/tmp/t/new/one"
    assert (sbx.files.exists("/tmp/t/1"), sbx.files.exists("/tmp/t/new/one")) == (False, True)
    info = sbx.files.get_info("/tmp/t/new/one")
    assert (info.size, info.permissions, info.owner) == (1, "-rw-r--r--", "user"), info
    sbx.files.remove("/tmp/t")
    assert not sbx.files.exists("/tmp/t")
    fails(FileNotFoundException, lambda: sbx.files.read("/nonesuch"))
    sbx.files.write("/tmp/signed", "signed")
    with urllib.request.urlopen(sbx.download_url("/tmp/signed", use_signature_expiration=600)) as answer:
        assert answer.read() == b"signed"


def watch(sbx):
    sbx.files.make_dir("/tmp/w")
    fails(SandboxException, lambda: sbx.files.watch_dir("/nonesuch"))
    handle = sbx.files.watch_dir("/tmp/w", recursive=True)
    sbx.files.write("/tmp/w/a", "x")
    sbx.commands.run("rm /tmp/w/a")
    seen = []
    while not seen or seen[-1][1] != FilesystemEventType.REMOVE:
        seen += [(e.name, e.type) for e in handle.get_new_events()]
    assert ("a", FilesystemEventType.WRITE) in seen, seen
    handle.stop()
    fails(SandboxException, handle.get_new_events)


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
    files(sandbox)
    watch(sandbox)
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
