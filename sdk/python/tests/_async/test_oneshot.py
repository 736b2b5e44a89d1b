"""Runs of one command in a sandbox of its own, on a real server."""

from __future__ import annotations

import os
import pathlib

import pytest

from sandpit import AsyncClient, AsyncSandbox, CommandFailed, InvalidError, Run, SandpitError, async_run
from sandpit.models import Result

from ..conftest import Server


async def test_files_go_in_and_come_out(server: Server, tmp_path: pathlib.Path) -> None:
    async with AsyncClient(**server.options()) as client:
        got = await async_run(
            "cat in/a.txt; mkdir -p out/deep; echo 1 >out/1.csv; echo 2 >out/deep/2.csv; ln -s /etc/passwd out/link; exit 3",
            files={"in/a.txt": "hello\n", "/tmp/b": b"\xff"},
            collect=["out/**", "*.none", "/tmp/b"],
            client=client,
        )
        assert (got.stdout, got.exit_code, got.ok) == ("hello\n", 3, False)
        names = {p.rsplit("/", 1)[-1]: data for p, data in got.files.items()}
        assert names == {"1.csv": b"1\n", "2.csv": b"2\n", "b": b"\xff"}
        assert list(got.omitted.values()) == ["it is a symlink, not a file"]
        assert got.unmatched == ("*.none",)
        assert await AsyncSandbox.list(client=client) == []
        assert len(got.save(tmp_path / "new")) == 3
        assert (tmp_path / "new" / "tmp" / "b").read_bytes() == b"\xff"


async def test_what_is_collected_may_be_at_home(server: Server) -> None:
    async with AsyncClient(**server.options()) as client:
        got = await async_run(
            "mkdir ~/d; echo 1 >~/d/a; cat ~/in",
            files={"~/in": "hi"},
            collect=["~/*", "~/d/**"],
            dir="/tmp",
            user="nobody",
            env={"HOME": "/tmp/home"},
            client=client,
        )
        assert got.stdout == "hi" and got.files == {"/tmp/home/in": b"hi", "/tmp/home/d/a": b"1\n"}
        assert got.omitted == {"/tmp/home/d": "it is a directory, not a file"} and not got.unmatched
        got = await async_run("echo 1 >~/a", collect=["~/a"], client=client)
        assert list(got.files.values()) == [b"1\n"]
        with pytest.raises(CommandFailed, match="exit code 1"):
            await async_run("false", check=True, client=client)


async def test_files_come_out_after_a_timeout_too(server: Server) -> None:
    async with AsyncClient(**server.options()) as client:
        got = await async_run("echo 1 >/tmp/a; sleep 1000", collect=["/tmp/a"], timeout=0.5, client=client)
        assert got.exit_code == 124 and got.files == {"/tmp/a": b"1\n"}


async def test_what_is_collected_is_bounded(server: Server) -> None:
    async with AsyncClient(**server.options()) as client:
        got = await async_run("cd /tmp; for i in 1 2 3 4 5; do echo $i >f$i; done; head -c 100 /dev/zero >big", collect=["/tmp/*"], max_bytes=50, client=client)
        assert (len(got.files) == 5 and got.omitted == {"/tmp/big": "it has 100 bytes, and 40 of 50 are left"}) or "/tmp/big" in got.omitted
        got = await async_run("cd /tmp; for i in 1 2 3 4 5; do echo $i >f$i; done", collect=["/tmp/f*"], max_files=3, client=client)
        assert len(got.files) == 3 and got.omitted == {"...": "there are more than 3 files"}
        assert await AsyncSandbox.list(client=client) == []


async def test_names_of_a_sandbox_write_nothing_elsewhere(tmp_path: pathlib.Path) -> None:
    def run(**files: bytes) -> Run:
        return Run(Result(0, b"", b""), {k.replace("__", "/").replace("UP", ".."): v for k, v in files.items()}, {}, ())

    to, out = tmp_path / "to", tmp_path / "out"
    to.mkdir()
    out.mkdir()
    (to / "link").symlink_to(out)
    (out / "f").write_text("mine")
    (to / "name").symlink_to(out / "f")
    os.mkfifo(to / "pipe")
    with pytest.raises(SandpitError, match="may be in its way"):
        run(__link__f=b"x").save(to)
    with pytest.raises(InvalidError):
        run(UP__out__f=b"x").save(to)
    with pytest.raises(InvalidError):
        run(__a__b=b"x").save(to, below="/c")
    assert run(__name=b"x", __pipe=b"y").save(to) == ["name", "pipe"]
    assert (out / "f").read_text() == "mine" and (to / "name").read_bytes() == b"x" and (to / "pipe").read_bytes() == b"y"
    assert sorted(p.name for p in to.iterdir()) == ["link", "name", "pipe"]
