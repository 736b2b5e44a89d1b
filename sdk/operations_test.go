package sdk_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// served has the methods of the SDK for Python that use an operation of the API, by its operationId.
func served() map[string]string {
	return map[string]string{
		"getVersion": "Client.version", "getCapabilities": "Client.capabilities", "getPolicy": "Client.policy",

		"createSandbox": "Sandbox.create", "getSandbox": "Sandbox.get Sandbox.refresh", "listSandboxes": "Sandbox.list", "removeSandbox": "Sandbox.remove",
		"pauseSandbox": "Sandbox.pause", "resumeSandbox": "Sandbox.resume", "stopSandbox": "Sandbox.stop", "startSandbox": "Sandbox.restart",
		"setLifetime": "Sandbox.extend", "getMetrics": "Sandbox.metrics", "getLogs": "Sandbox.logs",
		"listPorts": "Sandbox.ports", "createPreview": "Sandbox.preview",

		"runCode": "Sandbox.run_code", "createContext": "Sandbox.create_context", "listContexts": "Sandbox.contexts", "removeContext": "Sandbox.remove_context",
		"restartContext": "Sandbox.restart_context", "interruptContext": "Sandbox.interrupt_context",

		"exec": "Sandbox.run", "startProcess": "Sandbox.start", "getProcess": "Sandbox.process Process.refresh", "listProcesses": "Sandbox.processes",
		"followOutput": "Process.output", "waitProcess": "Process.wait", "signalProcess": "Process.signal Process.interrupt", "resizeProcess": "Process.resize",
		"killProcess": "Process.kill", "writeStdin": "Stdin.write",

		"readFile": "Files.read Files.read_text Files.stream", "writeFile": "Files.write", "listFiles": "Files.list", "statFile": "Files.stat Files.exists",
		"makeDirectory": "Files.mkdir", "removeFile": "Files.remove", "renameFile": "Files.rename", "copyFile": "Files.copy", "linkFile": "Files.symlink",
		"readLink": "Files.readlink", "findFiles": "Files.find",
	}
}

// unserved has the other operations, by the reason why the SDK does not have them.
func unserved() map[string]string {
	return map[string]string{
		"operators administer the server with the command line": "getServerMetrics searchAudit listKeys createKey revokeKey getKeyPolicy listNamespaces listSandboxesOfNamespace " +
			"listWebhooks createWebhook removeWebhook testWebhook listServices listDialects",
		"they describe the API, and no sandbox":           "getDocs getDocsStyle getOpenAPI getHealth",
		"images are managed with the command line":        "listImages removeImage pullImage tagImage commitSandbox",
		"secrets are stored with the command line":        "listSecrets setSecret removeSecret rotateSecret",
		"Sandbox.create has the egress and the limits":    "updateSandbox getEgress setEgress changeEgress checkEgress getEgressLog",
		"streams of HTTP are used in place of WebSockets": "execSocket attachProcess connectPort",
		"they are for browsers":                           "createTicket",
		"a preview expires by itself":                     "listPreviews revokePreview",
		"commands in the sandbox do the same":             "changeFile editFile grepFiles downloadArchive uploadArchive",
		"Sandbox.list and Sandbox.remove do the same":     "removeSandboxes",
		"Sandbox.start begins in the background":          "backgroundProcess",
		"Sandbox.metrics has the present values":          "getMetricsHistory",
		"the SDK follows only output":                     "followEvents watchFiles",
	}
}

// plumbing has the methods that use no operation, or any.
const plumbing = "Client.aclose Client.call Client.stream Client.pages Sandbox.aclose Stdin.aclose Process.id Process.pid Process.stdin Sandbox.id"

// Each operation of the API is one of the SDK for Python or is left out for a reason, and each of the SDK's methods uses one.
func TestPythonHasEachOperation(t *testing.T) {
	checkOperations(t, served(), plumbing, methodsOfPython(t))
}

// typescriptPlumbing has the methods of the SDK for TypeScript that use no operation, or any.
const typescriptPlumbing = "Client.close Client.call Client.open Client.bytes Client.once Client.pages Client.retries Client.undo Sandbox.close Sandbox.id " +
	"Process.id Process.pid Stdin.close Files.bytes"

// The same holds for the SDK for TypeScript, whose methods have the names of those for Python.
func TestTypeScriptHasEachOperation(t *testing.T) {
	all := served()
	for operation, names := range all {
		all[operation] = regexp.MustCompile(`_[a-z]`).ReplaceAllStringFunc(names, func(s string) string { return strings.ToUpper(s[1:]) })
	}
	all["renameFile"] = "Files.move"
	checkOperations(t, all, typescriptPlumbing, methodsOfTypeScript(t))
}

// checkOperations checks the methods that an SDK has against a table like served, and its plumbing.
func checkOperations(t *testing.T, served map[string]string, plumbing string, got []string) {
	t.Helper()
	text, err := os.ReadFile("../internal/api/openapi/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	var document struct {
		Paths map[string]map[string]struct {
			ID string `json:"operationId"`
		}
	}
	if err := json.Unmarshal(text, &document); err != nil {
		t.Fatal(err)
	}
	operations := map[string]bool{}
	for _, path := range document.Paths {
		for _, operation := range path {
			operations[operation.ID] = true
		}
	}
	said := map[string]int{}
	methods := map[string]bool{}
	for operation, names := range served {
		said[operation]++
		for name := range strings.FieldsSeq(names) {
			methods[name] = true
		}
	}
	for _, names := range unserved() {
		for operation := range strings.FieldsSeq(names) {
			said[operation]++
		}
	}
	for operation := range operations {
		if said[operation] != 1 {
			t.Errorf("the operation %s is in the tables %d times", operation, said[operation])
		}
	}
	for operation := range said {
		if !operations[operation] {
			t.Errorf("the API has no operation %s", operation)
		}
	}
	for name := range strings.FieldsSeq(plumbing) {
		methods[name] = true
	}
	want := slices.Sorted(maps.Keys(methods))
	for _, name := range got {
		if !methods[name] {
			t.Errorf("%s is in no table", name)
		}
	}
	for _, name := range want {
		if !slices.Contains(got, name) {
			t.Errorf("the SDK has no %s", name)
		}
	}
}

// methodsOfPython returns the public methods and properties of the exported classes that make requests.
func methodsOfPython(t *testing.T) (found []string) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^class (\w+)|^    (?:async )?def ([a-z]\w*)\(`)
	for _, file := range []string{"client", "sandbox", "process", "files"} {
		text, err := os.ReadFile(filepath.Join("python/src/sandpit/_async", file+".py"))
		if err != nil {
			t.Fatal(err)
		}
		class, public := "", false
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			if m[1] != "" {
				class, public = strings.CutPrefix(m[1], "Async")
			} else if public {
				found = append(found, class+"."+m[2])
			}
		}
	}
	slices.Sort(found)
	return found
}

// methodsOfTypeScript returns the public methods and properties of the exported classes that make requests.
func methodsOfTypeScript(t *testing.T) (found []string) {
	t.Helper()
	line := regexp.MustCompile(`(?m)^(?:export )?class (\w+)|^  (?:static )?(?:async )?(?:get )?\*?([a-z]\w*)\(`)
	for _, file := range []string{"client", "sandbox", "process", "files"} {
		text, err := os.ReadFile(filepath.Join("typescript/src", file+".ts"))
		if err != nil {
			t.Fatal(err)
		}
		class := ""
		for _, m := range line.FindAllStringSubmatch(string(text), -1) {
			if m[1] != "" {
				class = m[1]
			} else if class != "Retries" && class != "ProcessStream" && m[2] != "constructor" {
				found = append(found, class+"."+m[2])
			}
		}
	}
	slices.Sort(found)
	return found
}
