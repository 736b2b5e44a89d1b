"""Runs the examples in the documentation of the SDK of microsandbox's JSON-RPC server as they are in its package, one by one, and
checks what they print. The environment says where the server is."""

import contextlib
import importlib.metadata
import io
import re

about = importlib.metadata.metadata("microsandbox")
text = about.get_payload() or about["Description"]
examples = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
wanted = [
    r"Hello Python!\n",
    r"Hello World\nExit code: 0\nSuccess: True\nls: .*/nonexistent.*\nCommand timed out: .*longer than 2 seconds.*\n",
]
assert len(examples) == len(wanted), examples
for example, want in zip(examples, wanted, strict=True):
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(example, "example", "exec"), {"__name__": "__main__"})
    assert re.fullmatch(want, printed.getvalue()), (example, printed.getvalue())
