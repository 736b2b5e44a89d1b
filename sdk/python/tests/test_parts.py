"""The parts that need no server."""

from __future__ import annotations

import copy
import errno
import os
import pathlib
import pickle
import socket
import stat

import pytest

from sandpit import CodeFailed, CodeRun, CommandFailed, ForbiddenError, InvalidError, RateLimitedError, SandpitError, UnavailableError, _config, _frames, errors
from sandpit._sync.client import segment
from sandpit.errors import from_body
from sandpit.models import Info, Result


def test_frames_are_cut_wherever_the_bytes_are() -> None:
    data = b"".join(bytes([k]) + len(b).to_bytes(4, "big") + b for k, b in ((1, b"{}"), (2, b"abc"), (7, b""), (6, b"x" * 70000)))
    for size in (1, 2, 5, 1000, len(data)):
        frames = _frames.Frames()
        got = [f for at in range(0, len(data), size) for f in frames.feed(data[at : at + size])]
        assert [(k, len(b)) for k, b in got] == [(1, 2), (2, 3), (7, 0), (6, 70000)]
    with pytest.raises(UnavailableError, match="a frame of"):
        list(_frames.Frames().feed(b"HTTP/1.1 400"))


def test_a_repeated_answer_goes_on_where_the_output_was() -> None:
    c = _frames.Cursor()
    c.restart()
    assert c.output(b"abcdef") == b"abcdef"
    c.restart()
    assert c.output(b"abc") == b"" and c.output(b"defgh") == b"gh"
    c.restart()
    assert c.lost(6) == 0 and c.output(b"ghij") == b"ij"
    c.restart()
    assert c.lost(15) == 5 and c.output(b"z") == b"z" and c.position == 16


def test_server_sent_events_are_cut_wherever_the_bytes_are() -> None:
    data = b': ping\n\nevent: end\nid: 7\ndata: {"a":\ndata: 1}\n\nevent: x\r\ndata: "\xc3\xa9"\r\n\r\n'
    for size in (1, 3, len(data)):
        events = _frames.ServerEvents()
        got = [e for at in range(0, len(data), size) for e in events.feed(data[at : at + size])]
        assert [(e.event, e.data) for e in got] == [("end", {"a": 1}), ("x", "é")]


def test_codes_of_newer_servers_are_told_by_their_status() -> None:
    err = from_body(429, {"code": "brand_new", "message": "m", "hint": "h", "request_id": "r"}, "7")
    assert isinstance(err, RateLimitedError) and (err.code, err.hint, err.request_id, err.retry_after) == ("brand_new", "h", "r", 7.0)
    assert str(err) == "m\nhint: h"
    assert type(from_body(418, {})) is SandpitError
    assert isinstance(from_body(404, {"code": "file_not_found"}), FileNotFoundError)


def test_every_code_of_the_server_has_its_error() -> None:
    codes = os.environ["SANDPIT_ERROR_CODES"].split()
    assert "closed" in codes and set(codes) == set(errors._KINDS)


def test_every_error_survives_pickle_and_copy() -> None:
    kinds = [k for k in vars(errors).values() if isinstance(k, type) and issubclass(k, SandpitError)]
    assert len(kinds) == len(errors.__all__)
    for kind in kinds:
        if issubclass(kind, CommandFailed):
            err = kind("m", Result.read({"exit_code": 3}, b"out"))
        elif issubclass(kind, CodeFailed):
            err = kind("m", CodeRun.read({"error": {"name": "n", "value": "v", "traceback": "t"}}))
        else:
            err = kind("m", code="c", hint="h", request_id="r", status=400, path="/p")
        if isinstance(err, RateLimitedError):
            err.retry_after = 7.0
        for again in (pickle.loads(pickle.dumps(err)), copy.copy(err), copy.deepcopy(err)):
            assert type(again) is kind and vars(again) == vars(err) and str(again) == str(err) and again.args == err.args
            if isinstance(err, OSError):
                assert (again.errno, again.filename) == (err.errno, err.filename)


def test_errors_of_files_are_those_of_python() -> None:
    for code, number in (("file_not_found", errno.ENOENT), ("not_empty", errno.ENOTDIR), ("permission", errno.EACCES), ("disk_full", errno.ENOSPC)):
        err = from_body(400, {"code": code, "message": "m", "path": "/p"})
        assert isinstance(err, OSError) and (err.errno, err.filename, str(err)) == (number, "/p", "m")


def test_fields_of_newer_servers_are_kept() -> None:
    info = Info.read({"id": "a", "later": 1, "created_at": "2026-01-02T03:04:05.123456789Z"})
    assert info.raw["later"] == 1 and info.created_at is not None and info.created_at.microsecond == 123456


def test_a_result_with_lost_output_is_not_ok() -> None:
    assert Result.read({"exit_code": 0}).ok
    assert not Result.read({"exit_code": 0}, lost=1).ok


@pytest.mark.parametrize("address", ["", "nonsense", "ftp://a", "https://", "https://a:b", "https://u@a", "https://a/b", "unix://relative"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(InvalidError, match="is not a server address"):
        _config.parse(address, "sp_key")


def test_keys_go_to_no_plain_http_elsewhere() -> None:
    with pytest.raises(InvalidError, match="only on this machine"):
        _config.parse("http://example.com", "sp_key")
    assert _config.parse("http://127.0.0.1:1", "sp_key").url == "http://127.0.0.1:1"
    assert _config.parse("https://[::1]:1", "sp_key").url == "https://[::1]:1"
    with pytest.raises(InvalidError, match="needs a key"):
        _config.parse("https://example.com", "")


def test_without_a_server_and_a_program_the_error_says_both(tmp_path: pathlib.Path) -> None:
    with pytest.raises(UnavailableError, match=r"no server listens.*not installed"):
        _config.find(None, None, None, {"SANDPIT_HOME": str(tmp_path), "PATH": str(tmp_path)})


def test_the_socket_of_another_user_is_refused(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = str(tmp_path / "s")
    real = os.stat

    def owned_by_another(name: str) -> os.stat_result:
        info = list(real(name))
        if name == path:
            info[stat.ST_UID] = os.geteuid() + 4242
        return os.stat_result(info)

    with socket.socket(socket.AF_UNIX) as s:
        s.bind(path)
        assert _config.parse(f"unix://{path}", "").socket == path
        monkeypatch.setattr(os, "stat", owned_by_another)
        with pytest.raises(ForbiddenError, match="another user"):
            _config.parse(f"unix://{path}", "")


@pytest.mark.parametrize("id", ["", ".", ".."])
def test_an_id_does_not_lead_elsewhere(id: str) -> None:
    with pytest.raises(InvalidError, match="is not a name or id"):
        segment(id)


def test_a_key_with_strange_characters_is_not_shown() -> None:
    assert _config.find("https://a", "sp_key\n").key == "sp_key"
    with pytest.raises(InvalidError, match="the key has characters") as refused:
        _config.find("https://a", "sp_k\ney")
    assert "sp_k" not in str(refused.value)


def test_the_servers_answer_is_used(tmp_path: pathlib.Path) -> None:
    program = tmp_path / "sandpit"
    program.write_text('#!/bin/sh\necho \'{"server": "https://a:1", "credentials": "environment", "namespace": "docs"}\'\n')
    program.chmod(0o755)
    env = {"SANDPIT_HOME": str(tmp_path), "PATH": f"{tmp_path}:/usr/bin:/bin", "SANDPIT_KEY": "sp_key"}
    found = _config.find(None, None, None, env)
    assert (found.url, found.key, found.namespace) == ("https://a:1", "sp_key", "docs")
