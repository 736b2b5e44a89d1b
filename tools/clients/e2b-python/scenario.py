"""Uses the SDK of E2B, unmodified, against a server of Sandpit, and reports on its methods: with "async" as the argument,
on those of the asynchronous classes. The environment says where the server is."""

import os
import re
import sys
import threading
import time
import urllib.error
import urllib.request

from report import UNCHECKED, Blocking, Report, since  # which traces from here on

import e2b
from e2b import (
    CommandExitException,
    FileType,
    FilesystemEventType,
    NotFoundException,
    SandboxException,
    SandboxQuery,
    TimeoutException,
)

FileNotFoundException = getattr(e2b, "FileNotFoundException", e2b.NotFoundException)  # in old versions

asynchronous = sys.argv[1:] == ["async"]
prefix = "Async" if asynchronous else ""


def class_of(name):
    """Returns a class of the SDK, with the name that it has for synchronous programs, or None if it has none."""
    return getattr(e2b, prefix + name, None)


def usable(cls):
    """Returns a class as synchronous programs use it."""
    return Blocking(cls) if asynchronous and cls else cls


Sandbox, Volume, Secret = (usable(class_of(name)) for name in ("Sandbox", "Volume", "Secret"))
report = Report(f"e2b (Python{', asynchronous' if asynchronous else ''})", "e2b")


def fails(kind, call):
    """Returns the error of a call, which must be of a class."""
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


def lacks(what, **calls):
    """Checks that the server refuses methods of a class by name, as far as this version has them."""
    for method, call in calls.items():
        def run(call=call):
            assert re.search(f"{what} not supported by this server", str(fails(Exception, call)))

        report.lacks(what.rpartition(" ")[0], method.replace("_", ".", 1), run)


def processes():
    run = sbx.commands.run('echo "$FOO $X"; pwd; echo problem >&2', envs={"X": "y"}, cwd="/tmp")
    assert (run.exit_code, run.stdout, run.stderr) == (0, "bär y\n/tmp\n", "problem\n"), run
    known = sbx.commands.run('echo "$E2B_SANDBOX $E2B_SANDBOX_ID $E2B_TEMPLATE_ID"').stdout
    assert known == f"true {sbx.sandbox_id} base\n", known
    failed = fails(CommandExitException, lambda: sbx.commands.run("echo out; exit 3"))
    assert (failed.exit_code, failed.stdout, failed.error) == (3, "out\n", "exit status 3"), failed
    fails(TimeoutException, lambda: sbx.commands.run("sleep 1000", timeout=1))
    assert len(sbx.commands.run('head -c 3000001 /dev/zero | tr "\\0" x').stdout) == 3000001

    cat = sbx.commands.run('read x; echo "$x"; echo end', background=True, stdin=True)
    assert cat.pid in [p.pid for p in sbx.commands.list()]
    placed = sbx.commands.run("sleep 1000", background=True, cwd="/tmp")
    assert [(p.cwd, p.tag or None) for p in sbx.commands.list() if p.pid == placed.pid] == [("/tmp", None)]  # "" in old versions
    placed.kill()
    sbx.commands.send_stdin(cat.pid, "liné\n")
    assert cat.wait().stdout == "liné\nend\n"
    if "Commands.close_stdin" in report.methods:
        second = sbx.commands.run("cat", background=True, stdin=True)
        sbx.commands.send_stdin(second.pid, "x")
        sbx.commands.close_stdin(second.pid)
        assert second.wait().stdout == "x"
    if "CommandHandle.close_stdin" in report.methods:
        second = sbx.commands.run("cat", background=True, stdin=True)
        second.send_stdin("x")
        second.close_stdin()
        assert second.wait().stdout == "x"

    sleep = sbx.commands.run("sleep 1000", background=True)
    sleep.disconnect()
    assert sbx.commands.connect(sleep.pid).kill()
    assert not sbx.commands.kill(sleep.pid)


def stream(module, pid, pieces):
    """Sends pieces of input as one stream."""
    if asynchronous:
        handle = module.stream_input(pid)
        for piece in pieces:
            handle.send(piece)
        handle.close()
    else:
        module.stream_input(pid, iter(pieces))


def streams():
    pieces = [f"line {i}\n" for i in range(1000)] + ["x" * 1_000_000, b"\n"]
    count = sbx.commands.run("head -n 1001 | wc -c", background=True, stdin=True)
    stream(sbx.commands, count.pid, pieces)
    assert count.wait().stdout.strip() == str(sum(len(p) for p in pieces))
    fails(NotFoundException, lambda: stream(sbx.commands, count.pid, ["x"]))
    none = sbx.commands.run("sleep 1000", background=True)
    assert "no standard input" in str(fails(e2b.InvalidArgumentException, lambda: stream(sbx.commands, none.pid, ["x"])))
    none.kill()
    term = sbx.pty.create(e2b.PtySize(cols=90, rows=30), **({"on_data": lambda data: None} if asynchronous else {}))
    stream(sbx.pty, term.pid, [b"exit ", b"7\n"])
    assert fails(CommandExitException, term.wait).exit_code == 7


def terminals():
    seen, printed = bytearray(), threading.Event()

    def collect(data):
        seen.extend(data)
        if b"31 91" in seen or b"a1b" in seen:
            printed.set()

    size = {"on_data": collect} if asynchronous else {}
    term = sbx.pty.create(e2b.PtySize(cols=90, rows=30), **size)
    # Before a prompt, bash reads the size and sets it again: a change between the two would be lost.
    sbx.pty.send_stdin(term.pid, b"touch /tmp/reads; read; stty size; exit 0\n")
    while not sbx.files.exists("/tmp/reads"):
        pass
    sbx.pty.resize(term.pid, e2b.PtySize(cols=91, rows=31))
    sbx.pty.send_stdin(term.pid, b"\n")
    assert (term.wait() if asynchronous else term.wait(on_pty=collect)).exit_code == 0
    assert b"31 91" in seen, seen

    del seen[:]
    other = sbx.pty.create(e2b.PtySize(cols=90, rows=30), **size)
    other.disconnect()
    if hasattr(sbx.pty, "connect"):
        again = sbx.pty.connect(other.pid, **size)
        sbx.pty.send_stdin(other.pid, b"echo a$((1))b; exit 0\n")
        assert (again.wait() if asynchronous else again.wait(on_pty=collect)).exit_code == 0
        assert b"a1b" in seen, seen
    last = sbx.pty.create(e2b.PtySize(cols=90, rows=30), **size)
    assert sbx.pty.kill(last.pid)


def files():
    name = 'dir/ü "x" 100%.txt'
    assert sbx.files.write(name, "héllo").path == "/home/user/" + name
    assert sbx.files.read("/home/user/" + name) == "héllo"
    sbx.files.write_files([{"path": "/tmp/t/1", "data": "a"}, {"path": "/tmp/t/sub/2", "data": b"\x00\xff"}])
    assert sbx.files.read("/tmp/t/sub/2", format="bytes") == b"\x00\xff"
    sbx.files.write("/tmp/t/empty", "")
    assert sbx.files.read("/tmp/t/empty") == ""
    large = bytes(i * 7 % 256 for i in range(300_001))
    for options in [{}, {"gzip": True}] if since(report.version, "2.45.0") else [{}]:
        sbx.files.write("/tmp/large", large, **options)
        assert sbx.files.read("/tmp/large", format="bytes", **options) == large
    assert b"".join(sbx.files.read("/tmp/large", format="stream")) == large
    listed = [(e.name, e.type) for e in sbx.files.list("/tmp/t")]
    assert listed == [("1", FileType.FILE), ("empty", FileType.FILE), ("sub", FileType.DIR)], listed
    assert (sbx.files.make_dir("/tmp/t/new"), sbx.files.make_dir("/tmp/t/new")) == (True, False)
    assert sbx.files.rename("/tmp/t/1", "/tmp/t/new/one").path == "/tmp/t/new/one"
    assert sbx.files.rename("/tmp/t/new", "/home/user/new").path == "/home/user/new"  # another file system
    assert sbx.files.rename("/home/user/new", "/tmp/t/new").path == "/tmp/t/new"
    assert (sbx.files.exists("/tmp/t/1"), sbx.files.exists("/tmp/t/new/one")) == (False, True)
    if since(report.version, "2.45.0"):
        kept = {"author": "a b", "x-!#$": "~"}
        assert sbx.files.write("/tmp/t/meta/x", "x", metadata={"Author": "a b", "x-!#$": "~"}).metadata == kept
        assert sbx.files.get_info("/tmp/t/meta/x").metadata == kept
        assert [e.metadata for e in sbx.files.list("/tmp/t/meta")] == [kept]
        assert sbx.files.rename("/tmp/t/meta/x", "/home/user/x").metadata == kept
        sbx.files.write("/home/user/x", "y")
        assert sbx.files.get_info("/home/user/x").metadata is None
        sbx.files.remove("/home/user/x")
    info = sbx.files.get_info("/tmp/t/new/one")
    assert (info.size, info.permissions, info.owner) == (1, "-rw-r--r--", "user"), info
    sbx.files.remove("/tmp/t")
    assert not sbx.files.exists("/tmp/t")
    fails(FileNotFoundException, lambda: sbx.files.read("/nonesuch"))


def users():
    if os.getuid() != 0 and not sbx.commands.run("command -v sudo || true").stdout:
        return UNCHECKED  # without subordinate ids, a server of an ordinary user makes sandboxes with one user
    sbx.files.write("/etc/of-root", "x", user="root")
    assert sbx.files.get_info("/etc/of-root").owner == "root"
    assert sbx.commands.run("id -un", user="root").stdout == "root\n"
    assert sbx.commands.run("id -u; sudo id -u").stdout == "1000\n0\n"
    sbx.files.write("/path/to/file", "x")
    assert [sbx.files.get_info(path).owner for path in ("/path", "/path/to", "/path/to/file")] == ["user"] * 3
    sbx.files.make_dir("/srv/new")
    assert sbx.files.rename("/etc/of-root", "/srv/new/of-root").owner == "root"
    assert sbx.files.read("/srv/new/of-root") == "x"
    for path in ("/path", "/srv/new"):
        sbx.files.remove(path)
    fails(e2b.InvalidArgumentException, lambda: sbx.files.make_dir("/etc/passwd"))


def signatures():
    sbx.files.write("/tmp/signed", "signed")
    with urllib.request.urlopen(sbx.download_url("/tmp/signed", use_signature_expiration=600)) as answer:
        assert answer.read() == b"signed"
    body = b'--b\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\nmore\r\n--b--\r\n'
    up = urllib.request.Request(sbx.upload_url("/tmp/signed"), body, {"Content-Type": "multipart/form-data; boundary=b"})
    urllib.request.urlopen(up).close()
    assert sbx.files.read("/tmp/signed") == "more"


def watch():
    sbx.files.make_dir("/tmp/w")
    seen, removed = [], threading.Event()

    def collect(event):
        seen.append((event.name, event.type))
        if event.type == FilesystemEventType.REMOVE:
            removed.set()

    options = {"on_event": collect} if asynchronous else {}
    fails(SandboxException, lambda: sbx.files.watch_dir("/nonesuch", **options))
    fails(e2b.InvalidArgumentException, lambda: sbx.files.watch_dir("/etc/passwd", **options))
    handle = sbx.files.watch_dir("/tmp/w", recursive=True, **options)
    sbx.files.write("/tmp/w/a", "x")
    sbx.commands.run("rm /tmp/w/a")
    if asynchronous:
        removed.wait()
    while not removed.is_set():
        for event in handle.get_new_events():
            collect(event)
        time.sleep(0.05)
    assert ("a", FilesystemEventType.WRITE) in seen, seen
    handle.stop()
    if not asynchronous:
        many, made = sbx.files.watch_dir("/tmp/w"), set()
        sbx.commands.run("cd /tmp/w && for i in $(seq 5000); do : > $i; done")
        while len(made) < 5000:
            made |= {event.name for event in many.get_new_events()}
            time.sleep(0.05)
        many.stop()
        fails(SandboxException, handle.get_new_events)


def git():
    git, one, two, bare = sbx.git, "/tmp/one", "/tmp/two", "/tmp/bare"
    git.init(one, initial_branch="main")
    git.init(bare, bare=True, initial_branch="main")
    git.configure_user("A", "a@example.com")
    git.set_config("core.quotepath", "off")
    assert git.get_config("core.quotepath") == "off"
    sbx.files.write(f"{one}/ü", "1")
    assert [f.name for f in git.status(one).file_status] == ["ü"]
    git.add(one)
    git.commit(one, "first")
    assert git.status(one).is_clean
    sbx.files.write(f"{one}/ü", "2")
    git.restore(one, paths=["ü"])
    sbx.files.write(f"{one}/ü", "3")
    git.add(one)
    git.reset(one, mode="hard")
    assert sbx.files.read(f"{one}/ü") == "1"
    git.remote_add(one, "origin", bare)
    assert git.remote_get(one, "origin") == bare
    git.push(one, remote="origin", branch="main")
    git.clone(bare, path=two)
    git.create_branch(one, "other")
    assert git.branches(one).current_branch == "other"
    git.checkout_branch(one, "main")
    git.delete_branch(one, "other")
    git.pull(two)
    assert sbx.files.read(f"{two}/ü") == "1"
    git.dangerously_authenticate(username="u", password="p")
    fails(Exception, lambda: git.clone("/nonesuch", path="/tmp/three"))


def ports():
    """Names below localhost are those of this machine, but not for every resolver: the request goes to the server's
    address, if there is one."""
    host = sbx.get_host(8000)
    assert host.startswith(f"8000-{sbx.sandbox_id}.")
    server = sbx.commands.run("mkdir /tmp/site && echo hello > /tmp/site/index.html && cd /tmp/site && exec python3 -m http.server 8000", background=True)
    while True:
        request = urllib.request.Request(os.environ.get("E2B_SANDBOX_URL", f"https://{host}"), headers={"Host": host})
        try:
            with urllib.request.urlopen(request) as answer:
                assert answer.read() == b"hello\n"
                break
        except urllib.error.HTTPError as error:
            assert error.code == 502, error
            time.sleep(0.05)  # an open port answers 429 to those who ask too often
    server.kill()


def life():
    info = sbx.get_info()
    assert (info.sandbox_id, info.template_id, info.metadata) == (sbx.sandbox_id, "base", {"suite": "py"}), info
    sbx.set_timeout(1200)
    assert (sbx.get_info().end_at - info.end_at).total_seconds() > 500
    pages = Sandbox.list(query=SandboxQuery(metadata={"suite": "py"}))
    found = pages.next_items()
    assert [s.sandbox_id for s in found] == [sbx.sandbox_id], found
    for pause in [getattr(sbx, name) for name in ("pause", "beta_pause") if f"Sandbox.{name}" in report.methods]:
        pause()
        assert not sbx.is_running()
        assert Sandbox.connect(sbx.sandbox_id).commands.run("echo back").stdout == "back\n"
        sbx.connect()
    assert sbx.get_metrics()[0].mem_total > 0
    if "Sandbox.beta_create" in report.methods:
        second = Sandbox.beta_create(timeout=600, auto_pause=True)
        second.beta_pause()
        assert second.kill()


def network():
    if os.getuid() != 0:  # sandboxes have no network then
        fails(SandboxException, lambda: sbx.update_network({"allow_out": ["example.com"]}))
        return UNCHECKED
    sbx.update_network({"allow_out": ["example.com"], "deny_out": ["0.0.0.0/0"]})
    assert sbx.get_info().network["allow_out"] == ["example.com"], sbx.get_info()


def mcp():
    assert sbx.get_mcp_url().endswith("/mcp")
    fails(SandboxException, sbx.get_mcp_token)


def not_removed():
    assert Sandbox.delete_snapshot("nonesuch") is False


def secret_texts():
    assert "s" in Secret.fill("s")
    assert Secret.iam_token(audience="a", token_type="JWT-SVID")["audience"] == "a"


sbx = Sandbox.create(metadata={"suite": "py"}, envs={"FOO": "bär"}, timeout=600)
try:
    handle = sbx.commands.run("sleep 1000", background=True)
    watcher = sbx.files.watch_dir("/tmp", **({"on_event": print} if asynchronous else {}))
    known = {"CommandHandle": handle, "WatchHandle": watcher, "Filesystem": sbx.files, "Commands": sbx.commands, "Pty": sbx.pty, "Git": getattr(sbx, "git", None)}
    known |= {"SandboxPaginator": Sandbox.list(), "SnapshotPaginator": hasattr(Sandbox, "list_snapshots") and Sandbox.list_snapshots(), "SecretPaginator": Secret and Secret.list()}
    for name, value in known.items():
        if value:
            report.add(name, type(value.target if isinstance(value, Blocking) else value))
    for name in "Sandbox", "Volume", "Secret":
        if class_of(name):
            report.add(name, class_of(name))
    watcher.stop()
    handle.kill()

    report.works("Commands.run Commands.list Commands.connect Commands.kill Commands.send_stdin Commands.close_stdin", processes)
    report.works("CommandHandle.wait CommandHandle.kill CommandHandle.disconnect CommandHandle.send_stdin CommandHandle.close_stdin", lambda: None)
    if hasattr(sbx.commands, "stream_input"):
        report.works("Commands.stream_input Pty.stream_input", streams)
    report.works("Pty.create Pty.connect Pty.kill Pty.resize Pty.send_stdin", terminals)
    report.works("Filesystem.read Filesystem.write Filesystem.write_files Filesystem.list Filesystem.make_dir Filesystem.rename Filesystem.remove Filesystem.exists Filesystem.get_info", files)
    report.works("Commands.run Filesystem.write", users)
    report.works("Sandbox.upload_url Sandbox.download_url", signatures)
    report.works("Filesystem.watch_dir WatchHandle.stop WatchHandle.get_new_events", watch)
    report.works("Git.*", git)
    report.works("Sandbox.beta_create Sandbox.get_info Sandbox.set_timeout Sandbox.pause Sandbox.beta_pause Sandbox.connect Sandbox.is_running Sandbox.get_metrics Sandbox.list SandboxPaginator.next_items", life)
    report.works("Sandbox.update_network", network)
    report.works("Sandbox.get_host", ports)
    lacks("the MCP gateway is", Sandbox_get_mcp_token=lambda: Sandbox.create(mcp={"exa": {"apiKey": "x"}}))
    report.lacks("the MCP gateway", "Sandbox.get_mcp_url Sandbox.get_mcp_token", mcp)
    lacks("snapshots are", Sandbox_create_snapshot=lambda: sbx.create_snapshot(), Sandbox_list_snapshots=lambda: sbx.list_snapshots().next_items())
    lacks("snapshots are", SnapshotPaginator_next_items=lambda: Sandbox.list_snapshots().next_items())
    lacks("forking a sandbox is", Sandbox_fork=lambda: sbx.fork())
    lacks("volumes are", Volume_create=lambda: Volume.create("v"), Volume_connect=lambda: Volume.connect("v"), Volume_destroy=lambda: Volume.destroy("v"))
    report.lacks("volumes", "Volume.*")
    report.lacks("snapshots", "Sandbox.delete_snapshot", not_removed)
    lacks("stored secrets are", Secret_create=lambda: Secret.create("s", "v"), Secret_update=lambda: Secret.update("s", "v"), Secret_get_info=lambda: Secret.get_info("s"))
    lacks("stored secrets are", Secret_list=lambda: Secret.list().next_items(), Secret_exists=lambda: Secret.exists("s"), Secret_destroy=lambda: Secret.destroy("s"))
    lacks("stored secrets are", SecretPaginator_next_items=lambda: Secret.list().next_items())
    report.lacks("stored secrets", "Secret.fill Secret.iam_token", secret_texts)
    report.lacks("stored secrets", "SecretPaginator.*")
finally:
    assert sbx.kill()


def ended():
    assert not sbx.is_running()
    assert not Sandbox.kill(sbx.sandbox_id)
    fails(SandboxException, lambda: sbx.commands.run("true"))
    assert "no-such-template" in str(fails(SandboxException, lambda: Sandbox.create("no-such-template")))


report.works("Sandbox.create Sandbox.kill", ended)
report.end()

# The threads of the SDK's transport can abort the interpreter when it ends in the usual way.
sys.stdout.flush()
os._exit(0)
