"""Where the server is, and what proves who asks."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from .errors import ForbiddenError, InvalidError, UnavailableError

ENSURE_PATIENCE = 30.0
"""Seconds in which a server must have started."""


@dataclass(frozen=True)
class Endpoint:
    """The address of a server: a path of a unix socket, or a URL."""

    socket: str
    url: str
    key: str
    namespace: str = ""

    @property
    def shown(self) -> str:
        """The address as people write it."""
        return f"unix://{self.socket}" if self.socket else self.url


def find(server: str | None, key: str | None, namespace: str | None = None, env: Mapping[str, str] | None = None) -> Endpoint:
    """Return the endpoint that the arguments and the environment name.

    Without an address that is the socket of this user's server, which is started if the program ``sandpit`` is
    installed. There the kernel says who asks, and no key is needed.
    """
    env = os.environ if env is None else env
    address = env.get("SANDPIT_SERVER", "") if server is None else server
    key = _clean("the key", env.get("SANDPIT_KEY", "") if key is None else key)
    namespace = _clean("the namespace", env.get("SANDPIT_NAMESPACE", "") if namespace is None else namespace)
    if address and address != "local":
        return replace(parse(address, key), namespace=namespace)
    path = os.path.join(home(env), "server.sock")
    # A configuration file may name another server.
    if address == "local" or not configured(env):
        if answers(path):
            return Endpoint(own(path), "http://localhost", "", namespace)
    return ensure(path, key, namespace, {**env, "SANDPIT_SERVER": address})


def _clean(what: str, text: str) -> str:
    """Return what goes into the head of a request."""
    text = text.strip()
    if not text.isascii() or not text.isprintable():
        raise InvalidError(f"{what} has characters that can't be in one")
    return text


def configured(env: Mapping[str, str]) -> bool:
    """Report whether there is a configuration file."""
    files = [env.get("SANDPIT_CONFIG") or os.path.join(env.get("XDG_CONFIG_HOME") or os.path.join(env.get("HOME") or "/", ".config"), "sandpit", "config.yaml")]
    return any(map(os.path.exists, [*files, "/etc/sandpit/config.yaml"]))


def parse(address: str, key: str) -> Endpoint:
    """Read unix:///PATH, https://HOST:PORT, or http://HOST:PORT of this machine."""
    if address.startswith("unix://"):
        path = address[len("unix://") :]
        if not os.path.isabs(path) or "\0" in path:
            raise _bad(address)
        return Endpoint(own(os.path.normpath(path)), "http://localhost", key)
    url = urlsplit(address)
    try:
        port = url.port
    except ValueError:
        raise _bad(address) from None
    if url.scheme not in ("http", "https") or not url.hostname or url.username or url.path.strip("/") or url.query or url.fragment:
        raise _bad(address)
    if url.scheme == "http" and not _loopback(url.hostname):
        raise InvalidError(f"connecting to {address}: plain HTTP is allowed only on this machine", hint="use https")
    host = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    if not key:
        raise InvalidError(f"the server {address} needs a key", hint="set SANDPIT_KEY, or pass key=")
    return Endpoint("", f"{url.scheme}://{host}" + (f":{port}" if port else ""), key)


def _bad(address: str) -> InvalidError:
    return InvalidError(
        f"{address!r} is not a server address",
        hint="write unix:///PATH, https://HOST:PORT or, on this machine, http://127.0.0.1:PORT",
    )


def _loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def home(env: Mapping[str, str]) -> str:
    """Return the data directory of this user."""
    if env.get("SANDPIT_HOME"):
        return os.path.abspath(env["SANDPIT_HOME"])
    if os.geteuid() == 0:
        return "/var/lib/sandpit"
    for name, rest in (("XDG_DATA_HOME", ()), ("HOME", (".local", "share"))):
        if os.path.isabs(env.get(name, "")):
            return os.path.join(env[name], *rest, "sandpit")
    raise InvalidError("there is no place for the server's socket: HOME is not set", hint="set SANDPIT_SERVER or SANDPIT_HOME")


def own(path: str) -> str:
    """Return the path of a socket, unless somebody else may listen there: they would get what is sent."""
    try:
        info = os.stat(path)
        above = os.stat(os.path.dirname(path))
    except OSError as err:
        raise UnavailableError(f"connecting to unix://{path}: {err.strerror}") from err
    if not stat.S_ISSOCK(info.st_mode):
        raise InvalidError(f"connecting to unix://{path}: this is not a socket")
    if info.st_uid not in (0, os.geteuid(), above.st_uid):
        raise ForbiddenError(f"connecting to unix://{path}: the socket is of another user (uid {info.st_uid})")
    return path


def answers(path: str) -> bool:
    """Report whether a server listens at a path."""
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(5)
    try:
        s.connect(path)
        return True
    except PermissionError as err:
        raise ForbiddenError(f"connecting to unix://{path}: {err.strerror}", hint="the socket is of another user: set SANDPIT_SERVER or SANDPIT_HOME") from err
    except OSError:
        return False
    finally:
        s.close()


def ensure(path: str, key: str, namespace: str, env: Mapping[str, str]) -> Endpoint:
    """Start this user's server, or find the one that the configuration names."""
    program = shutil.which("sandpit", path=env.get("PATH"))
    if program is None:
        raise UnavailableError(
            f"no server listens at unix://{path}, and the program sandpit is not installed",
            hint="install sandpit, or set SANDPIT_SERVER and SANDPIT_KEY",
        )
    try:
        done = subprocess.run(
            [program, "serve", "--ensure"], env=dict(env), stdin=subprocess.DEVNULL, capture_output=True, timeout=ENSURE_PATIENCE, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as err:
        raise UnavailableError(f"starting a server with {program}: {err}") from err
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise UnavailableError(f"starting a server with {program}: {said or f'exit code {done.returncode}'}")
    try:
        told = json.loads(done.stdout)
        address, key = str(told["server"]), str(told.get("key") or key)
        namespace = namespace or str(told.get("namespace") or "")
    except (ValueError, TypeError, KeyError) as err:
        raise UnavailableError(f"starting a server with {program}: it did not say where it is: is it of another version?") from err
    return replace(parse(address, key), namespace=namespace)
