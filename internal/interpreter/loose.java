// Runs Java code that has no method main: statements, as notebooks have them. A file with the code is the argument.
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import jdk.jshell.DeclarationSnippet;
import jdk.jshell.Diag;
import jdk.jshell.EvalException;
import jdk.jshell.JShell;
import jdk.jshell.JShellException;
import jdk.jshell.Snippet;
import jdk.jshell.SnippetEvent;
import jdk.jshell.SourceCodeAnalysis.CompletionInfo;

class Loose {
    static final HashMap<String, Integer> lines = new HashMap<>(); // in which a part of the code begins, by its ID

    static int lineOf(String code, int at) {
        return 1 + (int) code.substring(0, at).chars().filter(c -> c == '\n').count();
    }

    static void fail(String text) {
        System.out.flush();
        System.err.println(text);
        System.exit(1);
    }

    /** Describes an exception with the lines of the code. */
    static String describe(Throwable e) {
        var text = new StringBuilder(e instanceof EvalException ? ((EvalException) e).getExceptionClassName() : e.getClass().getName());
        text.append(": ").append(e.getMessage());
        for (var frame : e.getStackTrace()) {
            var file = frame.getFileName();
            var line = file != null && file.startsWith("#") ? lines.get(file.substring(1)) : null;
            if (line != null) {
                text.append("\n\tat line ").append(line + frame.getLineNumber() - 1);
            } else if (!frame.getClassName().startsWith("REPL.") && file != null) {
                text.append("\n\tat ").append(frame);
            }
        }
        return e.getCause() == null ? text.toString() : text + "\nCaused by: " + describe(e.getCause());
    }

    public static void main(String[] args) throws Exception {
        var code = Files.readString(Path.of(args[0]));
        var shell = JShell.builder().executionEngine("local").build();
        for (var name : "io math net nio.file util util.concurrent util.function util.regex util.stream".split(" ")) {
            shell.eval("import java." + name + ".*;");
        }
        var analysis = shell.sourceCodeAnalysis();
        for (var rest = code.stripLeading(); !rest.isEmpty();) {
            CompletionInfo part = analysis.analyzeCompletion(rest);
            var complete = part.completeness().isComplete();
            var source = complete ? part.source() : rest;
            int start = code.length() - rest.length(); // rest is the end of the code
            for (SnippetEvent event : shell.eval(source)) {
                Snippet snippet = event.snippet();
                lines.putIfAbsent(snippet.id(), lineOf(code, start + Math.max(0, source.indexOf(snippet.source()))));
                if (event.status() == Snippet.Status.REJECTED) {
                    Diag found = shell.diagnostics(snippet).filter(Diag::isError).findFirst().orElse(null);
                    long at = found == null ? 0 : Math.min(found.getPosition(), snippet.source().length());
                    fail("line " + (lines.get(snippet.id()) - 1 + lineOf(snippet.source(), (int) Math.max(at, 0))) + ": error: " + (found == null ? "the code is not valid" : found.getMessage(null)));
                }
                JShellException thrown = event.exception();
                if (thrown != null) {
                    fail("Exception in thread \"main\" " + describe(thrown));
                }
            }
            rest = complete ? part.remaining().stripLeading() : "";
        }
        // Names that have not come by now do not exist.
        shell.snippets().filter(s -> s instanceof DeclarationSnippet && shell.status(s).toString().startsWith("RECOVERABLE")).forEach(s ->
            shell.unresolvedDependencies((DeclarationSnippet) s).findFirst().ifPresent(name -> fail("line " + lines.get(s.id()) + ": error: cannot find " + name)));
        for (var others = true; others;) { // as with a method main, threads of the code go on
            others = false;
            for (var thread : Thread.getAllStackTraces().keySet()) {
                if (thread != Thread.currentThread() && !thread.isDaemon() && thread.isAlive()) {
                    others = true;
                    thread.join();
                }
            }
        }
        System.out.flush();
        System.exit(0);
    }
}
