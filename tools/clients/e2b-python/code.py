"""Uses the code interpreter of E2B, unmodified, against a server of Sandpit. The environment says where that is."""

import os

from e2b_code_interpreter import Sandbox

sbx = Sandbox.create(timeout=600)
try:
    assert sbx.run_code("x = 1; x += 1; x").text == "2"
    seen = []
    second = sbx.run_code("import sys\nprint('hü', x)\nprint('problem', file=sys.stderr)", on_stdout=lambda m: seen.append(m.line))
    assert ("".join(second.logs.stdout), "".join(second.logs.stderr), "".join(seen)) == ("hü 2\n", "problem\n", "hü 2\n"), second
    failed = sbx.run_code("1/0")
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero"), failed
    context = sbx.create_code_context(cwd="/tmp", language="python")
    assert sbx.run_code("import os; os.getcwd()", context=context).text == "'/tmp'"
    assert context.id in [c.id for c in sbx.list_code_contexts()]
    sbx.restart_code_context(context)
    assert sbx.run_code("os", context=context).error.name == "NameError"
    sbx.remove_code_context(context)
    assert context.id not in [c.id for c in sbx.list_code_contexts()]
finally:
    sbx.kill()
os._exit(0)  # as in scenario.py
