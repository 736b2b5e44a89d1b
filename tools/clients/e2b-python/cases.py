"""Uses a sandbox that another SDK has made. The argument is its ID; the environment says where the server is."""

import sys

from e2b import Sandbox

sbx = Sandbox.connect(sys.argv[1])
assert sbx.files.read("from") == "JavaScript"
found = [p for p in sbx.commands.list() if p.args and "sleep 1000" in p.args[-1]]
assert len(found) == 1, found
handle = sbx.commands.connect(found[0].pid)
assert handle.kill()
sbx.files.write("to", "Python")
assert sbx.commands.run("cat from to").stdout == "JavaScriptPython"
assert sbx.kill()
