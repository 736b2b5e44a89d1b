"""The same as with an SDK, by requests to /v1 of Sandpit."""

import json
import os

import httpx
from turns import check, content, create, once, serve

# What the SDK makes, and the command as it sends it.
SPEC = json.loads(os.environ["SPEC"])
ARGV = json.loads(os.environ["ARGV"])

http = httpx.Client(
    base_url=os.environ["SANDPIT_URL"],
    headers={"Authorization": "Bearer " + os.environ["SANDPIT_KEY"]},
    limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
    timeout=60,
)


def call(method: str, path: str, **body: object) -> httpx.Response:
    answer = http.request(method, path, **body)
    check(answer.is_success, f"{method} {path}: {answer.status_code} {answer.text:.200}")
    return answer


def succeed(sandbox: str) -> None:
    done = call("POST", f"/v1/sandboxes/{sandbox}/exec", json={"argv": ARGV}).json()
    check(done["result"]["exit_code"] == 0, "the command has failed")


def make() -> str:
    sandbox = call("POST", "/v1/sandboxes", json=SPEC).json()["id"]
    succeed(sandbox)
    return sandbox


def remove(sandbox: str) -> None:
    call("DELETE", f"/v1/sandboxes/{sandbox}")


class Operations:
    def open(self) -> None:
        self.sandbox = make()

    def close(self) -> None:
        remove(self.sandbox)

    def create(self, n: int) -> list[float]:
        return create(n, make, remove)

    def exec(self) -> list[float]:
        return [once(lambda: succeed(self.sandbox))[0]]

    def up(self, size: int) -> list[float]:
        data = content(size)
        return [once(lambda: call("PUT", f"/v1/sandboxes/{self.sandbox}/files?path=/tmp/data", content=data))[0]]

    def down(self, size: int) -> list[float]:
        took, answer = once(lambda: call("GET", f"/v1/sandboxes/{self.sandbox}/files?path=/tmp/data"))
        check(len(answer.content) == size, f"{len(answer.content)} bytes arrived of {size}")
        return [took]

    def code(self) -> list[float]:
        took, run = once(lambda: call("POST", f"/v1/sandboxes/{self.sandbox}/code", json={"code": "1+1"}).json())
        check(run["outputs"][0]["text"] == "2", run)
        return [took]


serve(Operations())
