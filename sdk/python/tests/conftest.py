"""Starts a real server for the tests: the program that SANDPIT_BINARY names, or sandpit on PATH."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest


@dataclass
class Server:
    """A server that runs, by one of its two ways."""

    program: str
    home: pathlib.Path
    address: str
    key: str
    trust: ssl.SSLContext | None

    def options(self) -> dict[str, object]:
        """What a client takes."""
        found: dict[str, object] = {"server": self.address, "key": self.key}
        return {**found, "verify": self.trust} if self.trust else found


def program() -> str:
    found = os.environ.get("SANDPIT_BINARY") or shutil.which("sandpit")
    assert found, "set SANDPIT_BINARY to the program sandpit"
    return os.path.abspath(found)


def start(home: pathlib.Path, env: dict[str, str]) -> tuple[subprocess.Popen[bytes], str]:
    """Start a server, and return it with its address."""
    with (home / "log").open("wb") as log:
        server = subprocess.Popen([program(), "serve", "--config", str(home / "server.yaml")], env=env, stdout=log, stderr=subprocess.STDOUT)
    sock = home / "data" / "server.sock"
    until = time.monotonic() + 60
    address = ""
    while not (address and sock.exists()):
        if server.poll() is not None or time.monotonic() > until:
            server.kill()
            server.wait()
            pytest.fail((home / "log").read_text())
        for port in re.findall(r"address=127\.0\.0\.1:(\d+)\n", (home / "log").read_text()):
            address = f"https://127.0.0.1:{port}"
        time.sleep(0.05)
    return server, address


@dataclass
class Restartable:
    """A server that can be stopped and started again."""

    home: pathlib.Path
    server: subprocess.Popen[bytes] | None = None
    tcp: str = ""

    @property
    def address(self) -> str:
        return f"unix://{self.home}/data/server.sock"

    def start(self) -> None:
        (self.home / "server.yaml").write_text('listen: ["127.0.0.1:0"]\n')
        env = {k: v for k, v in os.environ.items() if not k.startswith("SANDPIT_")} | {"SANDPIT_HOME": str(self.home / "data")}
        self.server, self.tcp = start(self.home, env)

    def stop(self) -> None:
        if self.server is not None:
            self.server.terminate()
            self.server.wait(timeout=60)


@pytest.fixture
def restartable(tmp_path: pathlib.Path) -> Iterator[Restartable]:
    server = Restartable(tmp_path)
    server.start()
    try:
        yield server
    finally:
        server.stop()


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    home = tmp_path_factory.mktemp("home")
    pem, key = home / "server.pem", home / "server.key"
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-addext", names, "-keyout", str(key), "-out", str(pem)], check=True, capture_output=True)
    (home / "server.yaml").write_text('listen: ["127.0.0.1:0"]\ntls-cert: server.pem\ntls-key: server.key\n')
    env = {k: v for k, v in os.environ.items() if not k.startswith("SANDPIT_")} | {"SANDPIT_HOME": str(home / "data")}
    server, address = start(home, env)
    try:
        made = subprocess.run([program(), "key", "create", "--json", "tests"], env=env, check=True, capture_output=True)
        yield Server(program(), home, address, json.loads(made.stdout)["secret"], ssl.create_default_context(cafile=str(pem)))
    finally:
        server.terminate()
        server.wait(timeout=60)


@pytest.fixture(params=["unix socket", "TLS and a key"])
def server(running: Server, request: pytest.FixtureRequest) -> Server:
    if request.param == "unix socket":
        return Server(running.program, running.home, f"unix://{running.home}/data/server.sock", "", None)
    return running
