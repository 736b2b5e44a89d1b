"""Uses the code interpreter of E2B, unmodified, against a server of Sandpit, and reports on its methods: with "async" as
the argument, on those of the asynchronous class. The environment says where the server is."""

import os
import sys

from report import Blocking, Report  # which traces from here on

import e2b
from e2b_code_interpreter import AsyncSandbox, Sandbox

asynchronous = sys.argv[1:] == ["async"]
report = Report(f"e2b-code-interpreter (Python{', asynchronous' if asynchronous else ''})", "e2b-code-interpreter")
report.add("Sandbox", AsyncSandbox if asynchronous else Sandbox, e2b.Sandbox)


def code():
    assert sbx.run_code("x = 1; x += 1; x").text == "2"
    seen = []
    second = sbx.run_code("import sys\nprint('hü', x)\nprint('problem', file=sys.stderr)", on_stdout=lambda m: seen.append(m.line))
    assert ("".join(second.logs.stdout), "".join(second.logs.stderr), "".join(seen)) == ("hü 2\n", "problem\n", "hü 2\n"), second
    failed = sbx.run_code("1/0")
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero"), failed
    context = sbx.create_code_context(cwd="/tmp", language="python")
    assert sbx.run_code("import os; os.getcwd()", context=context).text == "'/tmp'"
    if not hasattr(Sandbox, "list_code_contexts"):
        return  # in old versions
    assert context.id in [c.id for c in sbx.list_code_contexts()]
    sbx.restart_code_context(context)
    assert sbx.run_code("os", context=context).error.name == "NameError"
    sbx.remove_code_context(context)
    assert context.id not in [c.id for c in sbx.list_code_contexts()]


sbx = (Blocking(AsyncSandbox) if asynchronous else Sandbox).create(timeout=600)
try:
    report.works("Sandbox.run_code Sandbox.create_code_context Sandbox.list_code_contexts Sandbox.restart_code_context Sandbox.remove_code_context", code)
finally:
    sbx.kill()
report.end()
sys.stdout.flush()
os._exit(0)  # as in scenario.py
