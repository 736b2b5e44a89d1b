// Code with state, on a real server.
import assert from "node:assert/strict";
import { Sandbox } from "@sandpit/sdk";
import { eachWay } from "./server.js";

eachWay("code keeps its state", async (client) => {
  await using sb = await Sandbox.create({ client });
  const first = await sb.runCode("x = 20\nprint('hi ü')\nx + 1");
  assert.deepEqual([first.text, first.stdout, first.ok, first.truncated], ["21", "hi ü\n", true, false]);
  assert.equal((await sb.runCode("x * 2")).text, "40");
  const failed = await sb.runCode("1/0");
  assert.deepEqual([failed.ok, failed.error?.name], [false, "ZeroDivisionError"]);
  assert.match(failed.error?.traceback ?? "", /1\/0/);
  const exited = await sb.runCode("exit 3", { language: "bash" });
  assert.deepEqual([exited.exitCode, exited.error, exited.ok], [3, undefined, false]);
  const ended = await sb.runCode("import os; os._exit(4)");
  assert(ended.interpreterEnd && !ended.ok);
});

eachWay("contexts have their own state, and are removed", async (client) => {
  await using sb = await Sandbox.create({ client });
  await sb.runCode("x = 1");
  const other = await sb.createContext({ language: "python", dir: "/tmp", env: { A: "b" } });
  assert.equal((await sb.runCode("x", { context: other })).error?.name, "NameError");
  assert.equal((await sb.runCode("import os\nos.getcwd() + os.environ['A']", { context: other.id })).text, "'/tmpb'");
  assert((await sb.runCode("import time\ntime.sleep(1000)", { context: other, timeout: 0.3 })).timedOut);
  await sb.removeContext(other);
  assert(!(await sb.contexts()).some((context) => context.id === other.id));
});

eachWay("output and values come as they are made, in all their forms", async (client) => {
  await using sb = await Sandbox.create({ client });
  const code = `
class Rich:
    def _repr_html_(self): return "<b>rich</b>"
    def __repr__(self): return "plain"
print("before")
display(Rich())
import os, time
while not os.path.exists("/tmp/go"): time.sleep(0.01)
Rich()`;
  const seen: string[] = [];
  let written: Promise<number> | undefined;
  const got = await sb.runCode(code, {
    timeout: 60,
    onOutput: (output) => void seen.push(output.text),
    onDisplay: (output) => {
      seen.push(`${output.main} ${output.forms["html"]}`);
      written ??= sb.files.write("/tmp/go", "");
    },
  });
  await written;
  assert.deepEqual(seen, ["before\n", "false <b>rich</b>", "true <b>rich</b>"]);
  assert.deepEqual([got.outputs.length, got.text, got.outputs[0]?.forms["text"]], [2, "plain", "plain"]);
});

eachWay("a context is interrupted, and restarted", async (client) => {
  await using sb = await Sandbox.create({ client });
  const context = await sb.createContext({ language: "python" });
  await sb.runCode("y = 1", { context });
  await sb.interruptContext(context);
  let interrupting: Promise<void> | undefined;
  const code = "import time\nprint('begun', flush=True)\ntime.sleep(1000)";
  const got = await sb.runCode(code, { context, timeout: 60, onOutput: () => void (interrupting ??= sb.interruptContext(context.id)) });
  await interrupting;
  assert.deepEqual([got.error?.name, got.timedOut], ["KeyboardInterrupt", false]);
  assert.equal((await sb.runCode("y", { context })).text, "1");
  await sb.restartContext(context);
  assert.equal((await sb.runCode("y", { context })).error?.name, "NameError");
});
