# Magics of notebooks: lines that begin with % or !, and what get_ipython returns. Only code that uses them loads it; see kernel.py.
def ipython_shell(namespace, perform, find_packages, displays):
    import ast, builtins, os, re, subprocess, sys, time

    class UsageError(Exception):
        """A magic was used in a wrong way."""

        __qualname__ = "UsageError"

    class Lines(list):
        """The output of a command."""

        n, s = property("\n".join), property(" ".join)

    def expand(text, frame):
        """Replaces {expression} and $name by their values. What is not known is left to the shell."""
        def value(found):
            try:
                got = eval(found.group(1) or found.group(2), frame.f_globals, frame.f_locals)
            except Exception:
                return found.group()
            return found.group() if isinstance(got, tuple) else str(got)  # {a,b} of the shell
        return re.sub(r"(?<!\$)\{([^{}\n]+)\}|\$([A-Za-z_]\w*)", value, text)

    def flush():
        sys.stdout.flush()
        sys.stderr.flush()

    captured = []  # has an element while %%capture runs

    def command(text):
        flush()
        into = subprocess.PIPE if captured else None
        done = subprocess.run(["sh", "-c", text], stdout=into, stderr=into)
        for stream, data in (sys.stdout, done.stdout), (sys.stderr, done.stderr):
            if data:
                stream.write(data.decode(errors="replace"))
        namespace["_exit_code"] = done.returncode
        find_packages()

    def scope_of(frame):
        """Returns the local variables of a function or class, or None at the top level."""
        if frame.f_locals is frame.f_globals:
            return None
        return dict(frame.f_locals) if frame.f_code.co_flags & 1 else frame.f_locals  # CO_OPTIMIZED: not of a class

    def placed(source, frame, cell):
        """Puts lines where the block has them: what a magic is about is in its line, or in those that follow."""
        return "\n" * (frame.f_lineno - (not cell)) + source

    # Magics. Those of lines get the rest of the line, those of cells the other lines, too.

    def span(seconds):
        if seconds >= 60:
            return "%dmin %ds" % divmod(round(seconds), 60)
        for unit, size in ("s", 1), ("ms", 1e-3), ("\u00b5s", 1e-6):
            if seconds >= size:
                return "%.3g %s" % (seconds / size, unit)
        return "%.3g ns" % (seconds * 1e9)

    def time_(line, frame, cell=None):
        source = line if cell is None else cell
        import resource
        used = lambda: resource.getrusage(resource.RUSAGE_SELF)[:2]
        before, wall = used(), time.perf_counter()
        try:
            value, shown = perform(placed(source, frame, cell is not None), frame.f_code.co_filename, scope_of(frame))
        finally:
            wall, after = time.perf_counter() - wall, used()
            user, system = after[0] - before[0], after[1] - before[1]
            print("CPU times: user %s, sys: %s, total: %s\nWall time: %s" % (span(user), span(system), span(user + system), span(wall)))
        return value if shown else None

    def timeit_(line, frame, cell=None):
        import timeit
        options = {}
        while True:
            found = re.match(r"\s*-(?:([nrp])\s*(\d+)|([qotc]))(?:\s+|$)", line)
            if not found:
                break
            options[found.group(1) or found.group(3)], line = int(found.group(2) or 1), line[found.end():]
        name = frame.f_code.co_filename
        # Its names must not be those of the code.
        tree = ast.parse("def inner(__it, __timer):\n setup\n __start = __timer()\n for __i in __it: code\n return __timer() - __start")
        body = tree.body[0].body
        body[2].body = ast.parse(placed(line if cell is None else cell, frame, cell is not None), name).body or [ast.Pass(lineno=1, col_offset=0)]
        body[0:1] = ast.parse(placed(line, frame, False), name).body if cell is not None else []
        made, scope = {}, scope_of(frame)
        exec(compile(tree, name, "exec"), {**frame.f_globals, **scope} if scope else frame.f_globals, made)
        timer = timeit.Timer()
        timer.inner = made["inner"]
        number = options.get("n") or timer.autorange()[0]
        runs = [taken / number for taken in timer.repeat(options.get("r") or 7, number)]
        mean = sum(runs) / len(runs)
        deviation = (sum((taken - mean) ** 2 for taken in runs) / len(runs)) ** 0.5
        if "q" not in options:
            many = lambda n, what: "%s %s%s" % (format(n, ","), what, "" if n == 1 else "s")
            print("%s \u00b1 %s per loop (mean \u00b1 std. dev. of %s, %s each)" % (span(mean), span(deviation), many(len(runs), "run"), many(number, "loop")))

    def pip(line, frame):
        import shlex
        command(shlex.quote(sys.executable) + " -m pip " + expand(line, frame))

    was = [os.getcwd()]  # for %cd -

    def cd(line, frame):
        to, now = expand(line, frame).strip("\"'"), os.getcwd()
        os.chdir(was[0] if to == "-" else os.path.expanduser(to or "~"))
        was[0] = now
        print(os.getcwd())

    def env(line, frame):
        name, equals, value = line.partition("=" if "=" in line else " ")
        if equals:
            os.environ[name.strip()] = value = expand(value.strip(), frame)
            print("env: %s=%s" % (name.strip(), value))
        elif not name:
            return dict(os.environ)
        elif name in os.environ:
            return os.environ[name]
        else:
            raise UsageError("Environment does not have key: " + name)

    def nothing(line, frame):
        """Is about a notebook, or about what always holds here."""

    def program(*argv):
        def run(line, frame, cell):
            import shlex
            flush()
            done = subprocess.run([*argv, *shlex.split(line)], input=cell.encode(errors="surrogateescape"))
            namespace["_exit_code"] = done.returncode
            find_packages()
            if done.returncode:
                raise subprocess.CalledProcessError(done.returncode, argv[0])
        return run

    def writefile(line, frame, cell):
        append = line.startswith("-a ")
        name = os.path.expanduser(expand(line[3 * append:].strip(), frame).strip("\"'"))
        print("%s %s" % ("Appending to" if append else "Overwriting" if os.path.exists(name) else "Writing", name))
        with open(name, "a" if append else "w", encoding="utf-8") as file:
            file.write(cell if cell.endswith("\n") else cell + "\n")

    class Captured:
        """What %%capture has kept."""

        def __init__(self, stdout, stderr):
            self.stdout, self.stderr = stdout, stderr

        def __str__(self):
            return self.stdout

        def show(self):
            sys.stdout.write(self.stdout)
            sys.stderr.write(self.stderr)

        __call__ = show

    def capture(line, frame, cell):
        import contextlib, io
        out, err = io.StringIO(), io.StringIO()
        captured.append(True)
        try:
            with contextlib.redirect_stdout(sys.stdout if "--no-stdout" in line.split() else out), \
                    contextlib.redirect_stderr(sys.stderr if "--no-stderr" in line.split() else err):
                perform(placed(cell, frame, True), frame.f_code.co_filename, scope_of(frame))
        finally:
            captured.pop()
            names = [word for word in line.split() if not word.startswith("-")]
            if names:
                namespace[names[0]] = Captured(out.getvalue(), err.getvalue())

    def shows(kind):
        def show(line, frame, cell):
            names = displays()
            names["display"](names[kind](cell))
        return show

    of_lines = {"time": time_, "timeit": timeit_, "pip": pip, "cd": cd, "env": env, "set_env": env, "pwd": lambda line, frame: os.getcwd()}
    of_lines.update(dict.fromkeys(("matplotlib", "load_ext", "reload_ext", "unload_ext", "autoreload", "config", "colors", "precision"), nothing))
    of_cells = {"capture": capture, "time": time_, "timeit": timeit_, "writefile": writefile, "file": writefile, "python": program(sys.executable), "python3": program(sys.executable)}
    of_cells.update((name, program(name)) for name in ("bash", "sh"))
    of_cells.update((kind.lower(), shows(kind)) for kind in ("HTML", "Markdown", "Latex", "SVG", "Javascript"))

    def unknown(name, cell):
        mark, known = "%%" if cell else "%", of_cells if cell else of_lines
        return "the magic %s%s is not supported: use plain Python, !command, or one of %s" % (mark, name, " ".join(mark + k for k in sorted(known)))

    class Events:
        """Calls nothing."""

        def register(self, event, function):
            pass

        unregister = register

    class Shell:
        """What get_ipython returns."""

        config, user_ns, events = {}, namespace, Events()

        def enable_gui(self, gui=None):
            """Does nothing: there is no screen."""

        def run_line_magic(self, magic_name, line="", _stack_depth=1):
            if magic_name not in of_lines:
                raise UsageError(unknown(magic_name, False))
            return of_lines[magic_name](line, sys._getframe(_stack_depth))

        def run_cell_magic(self, magic_name, line, cell):
            if magic_name not in of_cells:
                raise UsageError(unknown(magic_name, True))
            return of_cells[magic_name](line, sys._getframe(1), cell)

        def magic(self, text):
            name, _, line = text.lstrip("%").partition(" ")
            return self.run_line_magic(name, line.strip(), 2)

        def run_cell(self, raw_cell, **ignored):
            value, shown = perform(raw_cell, "<cell>")
            if shown and value is not None:
                builtins.display(value)

        def system(self, cmd):
            command(expand(cmd, sys._getframe(1)))

        def getoutput(self, cmd, split=True, depth=0):
            flush()
            done = subprocess.run(["sh", "-c", expand(cmd, sys._getframe(1 + depth))], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            namespace["_exit_code"] = done.returncode
            text = done.stdout.decode(errors="replace")
            return Lines(text.splitlines()) if split else text

        def help(self, name, source):
            import inspect
            frame = sys._getframe(1)
            try:
                value = eval(name, frame.f_globals, frame.f_locals)
            except Exception:
                print("Object `%s` not found." % name)
                return

            def tell(what, ask, *args):
                try:
                    found = ask(*args)
                except Exception:  # it has none
                    found = None
                if found:
                    print("%-12s %s" % (what + ":", found))
                return found

            tell("Signature", lambda: "%s%s" % (name, inspect.signature(value)))
            tell("Type", lambda: type(value).__name__)
            if not callable(value):
                tell("String form", lambda: (lambda text: text if len(text) <= 200 else text[:200] + "...")(repr(value)))
            tell("Length", len, value)
            tell("File", lambda: re.match("[^<].*", inspect.getsourcefile(value)).group())
            if not (source and callable(value) and tell("Source", inspect.getsource, value)):
                tell("Docstring", inspect.getdoc, value)

        def python(self, source, name):
            """Replaces magics by calls, each in its line. Lines inside of strings and brackets, and continued ones, are not magics."""
            def known(kind, cell):
                if kind not in (of_cells if cell else of_lines):
                    raise SyntaxError(unknown(kind, cell), (name, at + 1, 1, lines[at]))

            def call(method, *args):
                return "__sandpit_ipython__.%s(%s)" % (method, ", ".join(map(ascii, args)))

            lines, at = source.replace("\r\n", "\n").split("\n"), 0
            while not lines[at].strip() and at + 1 < len(lines):
                at += 1
            if lines[at].startswith("%%"):
                kind, _, rest = lines[at][2:].strip().partition(" ")
                known(kind, True)
                return "\n".join(lines[:at] + [call("run_cell_magic", kind, rest.strip(), "\n".join(lines[at + 1:]))])
            quote, depth, continued, after = "", 0, False, 0
            for at in range(len(lines)):
                line = lines[at]
                logical = not (quote or depth or continued or at < after)
                asked = logical and len(line) < 1000 and help_line.match(line)
                if asked:
                    indent, before, name, after_it = asked.group(1), asked.group(2), asked.group(3), asked.group(4)
                    if before or after_it:
                        lines[at] = indent + call("help", name, (before or after_it) == "??")
                        continue
                if logical and pip_line.match(line):  # as in notebooks, where some magics need no mark
                    line = re.sub(r"pip3?", "%pip", line, count=1)
                found = logical and magic_line.match(line)
                if found:
                    indent, target, kind, rest = found.groups()
                    after = at + 1
                    while rest.endswith("\\") and after < len(lines):  # it goes on in the next line
                        rest, lines[after] = rest + "\n" + lines[after], ""
                        after += 1
                    if kind == "%":
                        kind, _, rest = rest.strip().partition(" ")
                        known(kind, False)
                        made = call("run_line_magic", kind, rest.strip())
                    else:
                        made = call("getoutput" if target or kind == "!!" else "system", rest.strip())
                    lines[at] = indent + target + made
                    continue
                continued, pos = False, 0
                while True:
                    if quote:
                        end = re.compile(r"(?:\\.|[^\\])*?" + quote).match(line, pos)
                        if not end:
                            quote = quote if len(quote) == 3 or line.endswith("\\") else ""
                            break
                        quote, pos = "", end.end()
                    found = token.search(line, pos)
                    if not found or found.group() == "#":
                        break
                    text, pos = found.group(), found.end()
                    if text[0] in "\"'":
                        quote = text
                    elif text == "\\":
                        continued = True
                    else:
                        depth = depth + 1 if text in "([{" else max(depth - 1, 0)
            return "\n".join(lines)

    token = re.compile(r'''"""|\'\'\'|["'#()\[\]{}]|\\$''')
    magic_line = re.compile(r"""(\s*)((?:[^\W\d][\w.,\[\]'" *]*=\s*)?)(!!?|%(?!%))(.*\S.*)$""")
    pip_line = re.compile(r"\s*pip3?\s+(install|uninstall|download|list|freeze|show|check)\b")
    help_line = re.compile(r"(\s*)(\?{0,2})\s*([^\W\d][\w.]*)\s*(\?{0,2})\s*$")
    return Shell()
