"""Uses the code interpreter of E2B, unmodified, against a server of Sandpit, and reports on its methods: with "async" as
the argument, on those of the asynchronous class. The environment says where the server is."""

import os
import sys
import threading

from report import Blocking, Report, since  # which traces from here on

import e2b
from e2b_code_interpreter import AsyncSandbox, Sandbox, TimeoutException

asynchronous = sys.argv[1:] == ["async"]
report = Report(f"e2b-code-interpreter (Python{', asynchronous' if asynchronous else ''})", "e2b-code-interpreter")
report.add("Sandbox", AsyncSandbox if asynchronous else Sandbox, e2b.Sandbox)


# A figure as matplotlib makes one, which is not everywhere where this runs.
FIGURE = """
import sys, types
class Figure:
    def savefig(self, to, **options): to.write(b"\\x89PNG")
class Wedge:
    theta1, theta2, r = 0, 90, 1
    def get_label(self): return "u"
axes = types.SimpleNamespace(containers=[], patches=[Wedge()], collections=[], lines=[], get_title=lambda: "T")
sys.modules["matplotlib.figure"] = types.SimpleNamespace(Figure=Figure)
figure = Figure()
figure.axes = [axes]
figure"""


def code():
    assert sbx.run_code("\n    import math\n    x = 5\n    x\n").text == "5"
    assert [sbx.run_code(s).text for s in ("'a'", '"it\'s"', "''", "[\"'\"]")] == ["a", "it's", "", "[\"'\"]"]
    pieces = []
    for _ in range(5):
        sbx.run_code("print(1)\nprint('a', 'b', flush=True)", on_stdout=lambda m: pieces.append(m.line))
    assert "".join(pieces) == "1\na b\n" * 5 and all(p.endswith("\n") for p in pieces), pieces
    assert sbx.run_code("x = 1; x += 1; x").text == "2"
    known = sbx.run_code("import os; ' '.join(os.environ.get(n, '') for n in ('E2B_SANDBOX', 'E2B_SANDBOX_ID', 'E2B_TEMPLATE_ID'))").text
    assert known.split()[:2] == ["true", sbx.sandbox_id] and len(known.split()) == 3, known
    seen = []
    second = sbx.run_code("import sys\nprint('hü', x)\nprint('problem', file=sys.stderr)", on_stdout=lambda m: seen.append(m.line))
    assert ("".join(second.logs.stdout), "".join(second.logs.stderr), "".join(seen)) == ("hü 2\n", "problem\n", "hü 2\n"), second
    shown = sbx.run_code(FIGURE).results[0]
    assert (shown.png, shown.chart.type.value, shown.chart.title) == ("iVBORw==", "pie", "T"), shown
    assert [(e.label, e.angle, e.radius) for e in shown.chart.elements] == [("u", 90, 1)], shown.chart.elements
    failed = sbx.run_code("1/0")
    assert (failed.error.name, failed.error.value) == ("ZeroDivisionError", "division by zero"), failed
    assert sbx.run_code("import sys, site; z = 7; sys.exit()").error is None
    failed = sbx.run_code("sys.exit(3)")
    assert (failed.error.name, failed.error.value, sbx.run_code("z").text) == ("SystemExit", "3", "7"), failed
    # A package that is installed after the first run. A wheel is a zip.
    sbx.run_code("""
import zipfile
with zipfile.ZipFile("/tmp/own_package-1-py3-none-any.whl", "w") as z:
    z.writestr("own_package.py", "value = 42")
    z.writestr("own_package-1.dist-info/METADATA", "Metadata-Version: 2.1\\nName: own-package\\nVersion: 1\\n")
    z.writestr("own_package-1.dist-info/WHEEL", "Wheel-Version: 1.0\\nGenerator: test\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    z.writestr("own_package-1.dist-info/RECORD", "")""")
    if "pip" in sbx.run_code("import importlib.util\n'pip' if importlib.util.find_spec('pip') else ''").text:
        sbx.commands.run("pip install --no-index /tmp/own_package-1-py3-none-any.whl", user="user")
        assert sbx.run_code("import own_package; own_package.value").text == "42"
        assert "own-package" in "".join(sbx.run_code("!pip list").logs.stdout)
    assert "".join(sbx.run_code("echo $PIP_BREAK_SYSTEM_PACKAGES", language="bash").logs.stdout) == "1\n"
    shown = sbx.run_code("from IPython.display import display, HTML\ndisplay(HTML('<b>x</b>'))").results[0]
    assert (shown.html, shown.text) == ("<b>x</b>", "<IPython.core.display.HTML object>"), shown
    lacking = (Blocking(AsyncSandbox) if asynchronous else Sandbox).create(timeout=600, envs={"PATH": "/nowhere"})
    assert "the sandbox has no interpreter for javascript" in lacking.run_code("1", language="javascript").error.value
    lacking.kill()
    context = sbx.create_code_context(cwd="/tmp", language="python")
    assert sbx.run_code("import os; os.getcwd()", context=context).text == "/tmp"
    if not hasattr(Sandbox, "list_code_contexts"):
        return  # in old versions
    assert context.id in [c.id for c in sbx.list_code_contexts()]
    sbx.restart_code_context(context)
    assert sbx.run_code("os", context=context).error.name == "NameError"
    sbx.remove_code_context(context)
    assert context.id not in [c.id for c in sbx.list_code_contexts()]


def ends():
    """A run and a command that meet the end of their sandbox, by a kill or at its time-out."""
    kinds = Blocking(AsyncSandbox) if asynchronous else Sandbox
    for life, cut in ((600, lambda box: box.kill()), (4, lambda box: None), (600, lambda box: box.set_timeout(0))):
        box = kinds.create(timeout=life)
        handle = box.commands.run("sleep 1000", background=True, timeout=0)
        threads = [threading.Thread(target=lambda: cut(box))]
        begun = lambda m: threads and threads.pop().start()
        try:
            got = box.run_code("import time\nprint('begun')\ntime.sleep(1000)", on_stdout=begun)
            assert False, got
        except TimeoutException as e:
            assert "sandbox was killed" in str(e), e
        try:
            got = handle.wait()
            assert False, got
        except TimeoutException as e:
            assert "timed out" not in str(e).lower() and "'timeout'" not in str(e) or "killed or reached" in str(e), e
        assert not box.is_running()


sbx = (Blocking(AsyncSandbox) if asynchronous else Sandbox).create(timeout=600)
try:
    if since(report.version, "2.11.5"):  # old versions can't tell
        ends()
    report.works("Sandbox.run_code Sandbox.create_code_context Sandbox.list_code_contexts Sandbox.restart_code_context Sandbox.remove_code_context", code)
finally:
    sbx.kill()
report.end()
sys.stdout.flush()
os._exit(0)  # as in scenario.py
