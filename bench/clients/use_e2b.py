"""The SDK of E2B, unmodified."""

from e2b_code_interpreter import Sandbox
from turns import check, content, create, once, serve


def succeed(sandbox: Sandbox) -> None:
    check(sandbox.commands.run("true").exit_code == 0, "the command has failed")


def make() -> Sandbox:
    sandbox = Sandbox.create(timeout=600)
    succeed(sandbox)
    return sandbox


class Operations:
    def open(self) -> None:
        self.sandbox = make()

    def close(self) -> None:
        self.sandbox.kill()

    def create(self, n: int) -> list[float]:
        return create(n, make, lambda sandbox: sandbox.kill())

    def exec(self) -> list[float]:
        return [once(lambda: succeed(self.sandbox))[0]]

    def up(self, size: int) -> list[float]:
        data = content(size)
        return [once(lambda: self.sandbox.files.write("/tmp/data", data, use_octet_stream=True))[0]]

    def down(self, size: int) -> list[float]:
        took, data = once(lambda: self.sandbox.files.read("/tmp/data", format="bytes"))
        check(len(data) == size, f"{len(data)} bytes arrived of {size}")
        return [took]

    def code(self) -> list[float]:
        took, run = once(lambda: self.sandbox.run_code("1+1"))
        check(run.text == "2", run)
        return [took]


serve(Operations())
