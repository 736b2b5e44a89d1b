"""Uses the SDK of microsandbox, unmodified, with its cloud's API at a server of Sandpit, and reports on its methods. The
environment says where the server is."""

import asyncio
import contextlib
import inspect
import os
import pty
import re
import tempfile
import warnings

from report import Report, since  # which traces from here on

import microsandbox as msb
from microsandbox import Image, Network, NetworkPolicy, Patch, Rlimit, Sandbox, SandboxStatus, Secret, Snapshot, Volume

image = "microsandbox/python"
report = Report("microsandbox (Python)", "microsandbox")
for name in "Sandbox SandboxHandle SandboxFsOps ExecHandle ExecSink FsReadStream FsWriteSink LogEntry Volume VolumeHandle Snapshot SnapshotArchive SnapshotCopyBuilder SnapshotHandle Image ImageHandle Storage SandboxSshOps SshClient SftpClient SshServer PullSession Job JobAttachment JobLogStream".split():
    if cls := getattr(msb, name, None):
        report.add(name, cls)

warnings.simplefilter("ignore", DeprecationWarning)
loop = asyncio.new_event_loop()


async def settle(value):
    """Returns a result, for which the SDK may return something to wait for."""
    return await asyncio.wait_for(value, 60) if inspect.isawaitable(value) else value


def go(program):
    """Returns a program for the report, which runs a coroutine to its end."""
    return lambda: loop.run_until_complete(asyncio.wait_for(program(), 120))


async def fails(kind, call, text=""):
    """Returns the error of a call, which must be of a class and have a text."""
    try:
        await settle(call())
    except kind as error:
        assert re.search(text, str(error)), error
        return error
    raise AssertionError(f"no {kind.__name__}")


async def refuses(*calls):
    """Checks that the client refuses calls itself."""
    for call in calls:
        await fails((msb.UnsupportedError, msb.InvalidConfigError, msb.NoDefaultCommandError, getattr(msb, "JobError", msb.UnsupportedError)), call)


async def lacks(*calls):
    """Checks that the server refuses calls by name."""
    for call in calls:
        await fails(Exception, call, "501.* not supported by this server")


async def either(of, method, instead, *args):
    """Calls a method, or another one in older versions, which lack the first."""
    return await (getattr(of, method)(*args) if hasattr(of, method) else getattr(of, instead)())


async def reaches(of, status):
    """Waits until a sandbox has a status. Older versions have no method for that."""
    if hasattr(of, "wait_for_status"):
        assert (await of.wait_for_status(status)).status == status
    else:
        while (await Sandbox.get("second")).status != status:
            pass


async def life():
    sb = await Sandbox.create("life", image=image, env={"A": "ä"}, labels={"suite": "life"}, workdir="/tmp", cpus=1, memory=256, max_duration=600, idle_timeout=300)
    await fails(msb.SandboxAlreadyExistsError, lambda: Sandbox.create("life", image=image))
    await fails(msb.InvalidConfigError, lambda: Sandbox.create("other", image="no such image"))
    await fails(msb.SandboxNotFoundError, lambda: Sandbox.get("nonesuch"))
    await fails(msb.SandboxNotFoundError, lambda: Sandbox.remove("nonesuch"))
    if hasattr(Sandbox, "connect_or_create"):
        assert await settle((await Sandbox.connect_or_create("life", image=image)).id) == await settle(sb.id)
    page = await Sandbox.list()
    assert [h.name for h in page.sandboxes] == ["life"] and page.next_cursor is None
    second = await Sandbox.create("second", image=image, labels={"suite": "other"})
    page = await Sandbox.list_with(limit=1)
    assert len(page.sandboxes) == 1 and page.next_cursor
    rest = await Sandbox.list_with(limit=5, cursor=page.next_cursor)
    assert {h.name for h in page.sandboxes + rest.sandboxes} == {"life", "second"} and rest.next_cursor is None
    assert [h.name for h in (await Sandbox.list_with(labels={"suite": "life"})).sandboxes] == ["life"]
    await second.stop()
    h = await Sandbox.get("second")
    assert h.status == SandboxStatus.STOPPED
    assert (await h.wait_until_stopped()).status == SandboxStatus.STOPPED
    config = h.config() if inspect.isroutine(h.config) else h.config
    assert config["name"] == "second", config
    started = await h.start()
    await reaches(await h.refresh(), SandboxStatus.RUNNING)
    await either(started, "stop_with_timeout", "stop", 20)
    assert (await started.wait_until_stopped()).name == "second"
    second = await either(await Sandbox.get("second"), "connect_or_start", "start")
    await second.request_stop()
    await reaches(second, SandboxStatus.STOPPED)
    second = await Sandbox.start("second")
    if hasattr(second, "restart"):
        await second.restart()
        await (await Sandbox.get("second")).restart()
    await (await Sandbox.get("second")).connect()
    await (await Sandbox.get("second")).stop()
    await (await Sandbox.get("second")).start()
    h = await Sandbox.get("second")
    await h.request_stop()
    await reaches(h, SandboxStatus.STOPPED)
    await either(await Sandbox.get("second"), "stop_with_timeout", "stop", 20)
    await (await Sandbox.get("second")).remove()
    await fails(msb.SandboxNotFoundError, lambda: Sandbox.get("second"))

    for name in ("a", "b") if hasattr(Sandbox, "destroy") else ():
        sb = await Sandbox.create(name, image=image)
        await (sb if name == "a" else await Sandbox.get(name)).destroy()
        await fails(msb.SandboxNotFoundError, lambda: Sandbox.get(name))
    async with await Sandbox.create("context", image=image) as sb:
        pass
    await fails(msb.SandboxNotFoundError, lambda: Sandbox.get("context"))
    short = await Sandbox.create("short", image=image, ephemeral=True)
    await short.stop()  # which removes it
    assert "short" not in [h.name for h in (await Sandbox.list()).sandboxes]
    kept = await Sandbox.create("kept", image=image)
    await kept.detach()
    await (await Sandbox.get("kept")).stop()
    await Sandbox.remove("kept")
    await Sandbox.remove("life")
    assert (await Sandbox.list()).sandboxes == []


async def made():
    """What a sandbox is made with is there."""
    sb = await Sandbox.create(
        "made", image=image, env={"A": "ä"}, user="nobody", workdir="/tmp", scripts={"hello": "#!/bin/sh\necho hello $1\n"}, volumes={"/scratch": Volume.tmpfs(size_mib=5)},
        patches=[Patch.text("/etc/app/x.conf", "ü"), Patch.append("/etc/app/x.conf", "!"), Patch.file("/etc/app/b", b"\x00\xff", mode=0o600, replace=True), Patch.mkdir("/etc/app/d", mode=0o700), Patch.symlink("x.conf", "/etc/app/l"), Patch.remove("/etc/motd")],
        network=Network.none(),
    )
    run = await sb.shell('echo $A; pwd; id -un; cat /etc/app/l; stat -c %a /etc/app/b /etc/app/d; df -m /scratch | tail -1 | awk "{print \\$2}"; /.msb/scripts/hello you; echo problem >&2; exit 3')
    assert (run.exit_code, run.success, run.stdout_text, run.stderr_text) == (3, False, "ä\n/tmp\nnobody\nü!600\n700\n5\nhello you\n", "problem\n"), (run.exit_code, run.stdout_text, run.stderr_text)
    later = await (await Sandbox.get("made")).connect()
    run = await later.exec("sh", ["-c", "echo $A; pwd; id -un"])
    assert run.stdout_text == "ä\n/tmp\nnobody\n", run.stdout_text
    await sb.stop()
    await Sandbox.remove("made")


async def processes():
    run = await sbx.exec("sh", ["-c", 'echo "$X"; pwd; echo problem >&2; exit 3'], cwd="/tmp", env={"X": "ü"})
    assert (run.exit_code, run.stdout_bytes, run.stderr_text) == (3, "ü\n/tmp\n".encode(), "problem\n")
    await fails(msb.ExecTimeoutError, lambda: sbx.exec("sleep", ["1000"], timeout=1))
    await fails(msb.MicrosandboxError, lambda: sbx.exec("/nonesuch"))
    run = await sbx.shell("head -c 3000001 /dev/zero")
    assert len(run.stdout_bytes) == 3000001
    run = await sbx.exec("cat", stdin=b"given")
    assert run.stdout_text == "given"
    run = await sbx.shell("ulimit -n", rlimits=[Rlimit.nofile(100)])
    assert run.stdout_text == "100\n", run.stdout_text
    run = await sbx.shell("ulimit -t; ulimit -Hs; head -c 4096 /dev/zero > /tmp/large", rlimits=[Rlimit.cpu(50), Rlimit.stack(1 << 20), Rlimit.fsize(512)])
    assert (run.stdout_text, run.success) == ("50\n1024\n", False), run.stdout_text
    await fails(msb.MicrosandboxError, lambda: sbx.exec("true", rlimits=[Rlimit.memlock(1 << 40)]), "memlock")

    cat = await sbx.exec_stream("cat", stdin=msb.Stdin.pipe())
    sink = cat.take_stdin()
    await sink.write("liné\n".encode())
    await sink.close()
    assert (await cat.collect()).stdout_text == "liné\n"
    handle = await sbx.shell_stream("echo a; sleep 1000")
    while (event := await handle.recv()).data != b"a\n":
        pass
    await handle.signal(15)
    assert await handle.wait() == (143, False)
    handle = await sbx.exec_stream("sleep", ["1000"])
    await handle.kill()
    assert (await handle.wait())[0] == 137
    tty = await sbx.exec_stream("sh", ["-c", "sleep 0.3; stty size; tty"], tty=True)
    await tty.resize(30, 100)
    out = (await tty.collect()).stdout_text
    assert "30 100" in out and "/dev/pts/" in out, out


async def files():
    fs = sbx.fs
    await fs.mkdir("/tmp/dir")
    await fs.write("/tmp/dir/ä\nb", bytes(range(256)))
    assert await fs.read("/tmp/dir/ä\nb") == bytes(range(256))
    sink = await fs.write_stream("/tmp/dir/text")
    for _ in range(3):
        await sink.write("liné\n".encode())
    await sink.close()
    assert await fs.read_text("/tmp/dir/text") == "liné\n" * 3
    stream = await fs.read_stream("/tmp/dir/text")
    assert await stream.collect() == "liné\n".encode() * 3
    assert {e.path.rsplit("/", 1)[-1] for e in await fs.list("/tmp/dir")} == {"ä\nb", "text"}
    info = await fs.stat("/tmp/dir/text")
    assert (info.size, info.kind) == (18, "file"), info
    await fs.copy("/tmp/dir/text", "/tmp/dir/copy")
    await fs.rename("/tmp/dir/copy", "/dev/shm/moved")
    await fs.rename("/dev/shm/moved", "/tmp/dir/moved")
    assert await fs.exists("/tmp/dir/moved") and not await fs.exists("/tmp/dir/copy")
    with tempfile.TemporaryDirectory() as host:
        with open(f"{host}/up", "wb") as f:
            f.write(b"up")
        await fs.copy_from_host(f"{host}/up", "/tmp/dir/up")
        await fs.copy_to_host("/tmp/dir/up", f"{host}/down")
        with open(f"{host}/down", "rb") as f:
            assert f.read() == b"up"
    await fs.remove("/tmp/dir/moved")
    await fs.remove_dir("/tmp/dir")
    assert not await fs.exists("/tmp/dir")
    await fails(msb.MicrosandboxError, lambda: fs.read("/nonesuch"))


async def logs():
    sb = await Sandbox.create("logs", image=image)
    await sb.shell("echo one; echo two")
    seen = []
    stream = await sb.log_stream(follow=True)
    async for entry in stream:
        seen.append(entry)
        if len(seen) == 2:
            break
    assert [(e.text(), e.source) for e in seen] == [("one\n", "stdout"), ("two\n", "stdout")], [e.text() for e in seen]
    handle = await Sandbox.get("logs")
    stream = await handle.log_stream(follow=True, from_cursor=seen[0].cursor)
    async for entry in stream:
        assert entry.text() == "two\n"
        break
    await sb.stop()
    await Sandbox.remove("logs")


async def ssh():
    client = await sbx.ssh().open_client()
    run = await client.exec("echo ssh; exit 4")
    assert (run.status, run.stdout_text) == (4, "ssh\n"), (run.status, run.stdout_text)
    sftp = await client.sftp()
    await sftp.mkdir("/tmp/sftp")
    await sftp.write("/tmp/sftp/a", b"content")
    assert await sftp.read("/tmp/sftp/a") == b"content"
    await sftp.rename("/tmp/sftp/a", "/tmp/sftp/b")
    await sftp.symlink("/tmp/sftp/b", "/tmp/sftp/l")
    assert await sftp.read_link("/tmp/sftp/l") == "/tmp/sftp/b"
    assert await sftp.real_path("/tmp/sftp/l") == "/tmp/sftp/b"
    await sftp.remove_file("/tmp/sftp/l")
    await sftp.remove_file("/tmp/sftp/b")
    await sftp.remove_dir("/tmp/sftp")
    await sftp.close()
    await client.close()


local_methods = "list_jobs drain metrics ping touch compact logs pause resume request_drain request_kill kill wait restore_warnings storage_usage modify fork branch get_job fork_many branch_many exec_detached remove_persisted stop_and_wait".split()


async def refused():
    h = await Sandbox.get("main")
    given = {"fork": ["x"], "branch": ["x"], "get_job": ["job_" + 32 * "0"], "fork_many": [["x"]], "branch_many": [["x"]], "exec_detached": ["true"]}
    for name in local_methods:
        for of in (await h.connect(), h):  # some methods make the object useless
            if hasattr(of, name):
                await refuses(lambda: getattr(of, name)(*given.get(name, [])))
    stream = await sbx.metrics_stream()
    await fails(msb.UnsupportedError, lambda: stream.__anext__())
    await refuses(lambda: Image.get("x"), lambda: Image.inspect("x"), Image.list, lambda: Image.load("x"), Image.prune, lambda: Image.remove("x"), sbx.ssh().prepare_server)
    await refuses(lambda: Snapshot.list_dir("/tmp"), lambda: Snapshot.load("/nonesuch"), Snapshot.reindex, lambda: Snapshot.save("x", "/nonesuch"))
    if since(report.version, "0.7.0"):
        await refuses(lambda: Snapshot.group_head("x"), lambda: Snapshot.load_many(["/nonesuch"]), msb.Storage.usage, msb.Storage.prune)


async def defaults():
    """Commands of the image, of which clients of a cloud know nothing."""
    for call in (sbx.exec_default, sbx.exec_default_stream, sbx.attach_default):
        await fails(msb.NoDefaultCommandError, call)
    sb = await Sandbox.create("defaults", image=image, entrypoint=["echo"], cmd=["by default"])
    assert (await sb.exec_default()).stdout_text == "by default\n"
    await sb.stop()
    await Sandbox.remove("defaults")


async def terminals():
    """Attaching uses the terminal of this program, which gets one."""
    kept = [os.dup(fd) for fd in (0, 1)]
    master, slave = pty.openpty()
    try:
        for fd in (0, 1):
            os.dup2(slave, fd)
        os.write(master, b"exit 5\n")
        assert await sbx.attach_shell() == 5
        assert await sbx.attach("sh", ["-c", "tty; exit 6"]) == 6
        client = await sbx.ssh().open_client()
        os.write(master, b"exit 7\n")
        assert await client.attach() == 7
        await client.close()
    finally:
        for fd in (0, 1):
            os.dup2(kept[fd], fd)
        os.close(slave)
    assert b"/dev/pts/" in os.read(master, 1 << 16)


async def local():
    """What needs no server."""
    Volume.disk("x"), Image.oci("x"), Image.bind("/x"), Image.disk("/x.raw")
    if hasattr(Volume, "owned"):
        Volume.owned()
    session = Sandbox.create_with_progress("called-off", image=image)
    if hasattr(session, "cancel"):
        session.cancel()
    with contextlib.suppress(Exception):
        await session.result()
    with contextlib.suppress(msb.SandboxNotFoundError):
        await Sandbox.remove("called-off")


async def progress():
    session = Sandbox.create_with_progress("progress", image=image)
    sb = await session.result()
    assert await settle(sb.name) == "progress"
    await sb.stop()
    await Sandbox.remove("progress")


async def volumes():
    await lacks(lambda: Volume.create("v"), lambda: Volume.get("v"), Volume.get_default, Volume.list, lambda: Volume.remove("v"))
    await lacks(lambda: Sandbox.create("v", image=image, volumes={"/v": Volume.named("v")}), lambda: Sandbox.create("v", image=image, volumes={"/v": Volume.bind("/tmp"), "/t": Volume.tmpfs()}))


async def snapshots():
    h = await Sandbox.get("main")
    await lacks(lambda: h.snapshot("x"), lambda: Snapshot.create("x", from_sandbox="main"), lambda: Snapshot.get("x"), Snapshot.list, lambda: Snapshot.open("x"), lambda: Snapshot.remove("x"), lambda: Sandbox.restore("x", name="y"), lambda: Sandbox.restore_with_progress("x", name="y").result())


async def older_snapshots():
    h = await Sandbox.get("main")
    await refuses(lambda: h.snapshot("x"), lambda: Snapshot.create("x", from_sandbox="main"), lambda: Snapshot.get("x"), Snapshot.list, lambda: Snapshot.open("x"), lambda: Snapshot.remove("x"))


async def begin():
    global sbx
    sbx = await Sandbox.create("main", image=image, env={"FOO": "bär"}, workdir="/tmp")


async def end():
    await sbx.stop()
    await Sandbox.remove("main")


go(begin)()
try:
    report.works("Sandbox.exec Sandbox.exec_stream Sandbox.shell Sandbox.shell_stream ExecHandle.* ExecSink.*", go(processes))
    report.works("Sandbox.attach Sandbox.attach_shell SshClient.attach", go(terminals))
    report.works("SandboxFsOps.* FsReadStream.* FsWriteSink.*", go(files))
    report.works("Sandbox.ssh SandboxSshOps.open_client SshClient.exec SshClient.sftp SshClient.close SftpClient.*", go(ssh))
    report.works("Sandbox.log_stream SandboxHandle.log_stream LogEntry.*", go(logs))
    report.works("Volume.tmpfs SandboxHandle.connect", go(made))
    report.works("Sandbox.create_with_progress PullSession.result", go(progress))
    report.works("Volume.disk Volume.owned Image.oci Image.bind Image.disk PullSession.cancel", go(local))
    report.lacks("volumes", "Volume.create Volume.get Volume.get_default Volume.list Volume.remove Volume.named Volume.bind", go(volumes))
    report.lacks("volumes", "VolumeHandle.*")
    names = "SandboxHandle.snapshot Snapshot.create Snapshot.get Snapshot.list Snapshot.open Snapshot.remove Sandbox.restore Sandbox.restore_with_progress"
    if since(report.version, "0.7.0"):
        report.lacks("snapshots", names, go(snapshots))
        report.lacks("snapshots", "SnapshotHandle.* SnapshotCopyBuilder.* Snapshot.copy_to Snapshot.verify Snapshot.storage_usage Snapshot.save_to Snapshot.create_archive")
    else:
        report.refused("local only", names, go(older_snapshots))
        report.unused("local only", "SnapshotHandle.* Snapshot.verify")
    report.refused("local only", " ".join([f"{of}.{name}" for of in ("Sandbox", "SandboxHandle") for name in local_methods] + ["Image.get Image.inspect Image.list Image.load Image.prune Image.remove Storage.* Sandbox.metrics_stream Snapshot.group_head Snapshot.list_dir Snapshot.load Snapshot.load_many Snapshot.reindex Snapshot.save SandboxSshOps.prepare_server"]), go(refused))
    report.works("Sandbox.exec_default Sandbox.exec_default_stream Sandbox.attach_default", go(defaults))
    report.unused("local only", "Job.* JobAttachment.* JobLogStream.* ImageHandle.* Image.save SshServer.*")
finally:
    go(end)()
report.works("Sandbox.* SandboxHandle.*", go(life))
report.end()
