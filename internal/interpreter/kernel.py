# The interpreter of a context: it runs blocks of code that arrive on a unix socket, one after the
# other, in one namespace. It needs Python 3.8 and nothing but its standard library. A line with the
# variable SETUP precedes it, and so does charts.py. Lines of JSON go both ways; see channel.go.
import sys


def kernel(setup):
    import ast, base64, builtins, importlib.machinery, io, json, linecache, os, select, signal, site, socket, time, traceback, types, _thread, __future__

    # What the code may replace, and a run needs to end.
    dumps, getpid, handle, ready_of = json.dumps, os.getpid, signal.signal, select.select
    dup2, fstat, write, get_ident = os.dup2, os.fstat, os.write, _thread.get_ident
    main_thread, lock = get_ident(), _thread.allocate_lock()
    max_line = setup["max_line"]
    pid, marks, null, listener = None, [1, 2], None, None
    main = types.ModuleType("__main__")
    main.__builtins__ = builtins
    sys.modules["__main__"] = main
    sys.argv = [""]
    namespace = main.__dict__
    features = 0
    for feature in __future__.all_feature_names:
        features |= getattr(__future__, feature).compiler_flag
    state = {"conn": None, "running": False, "flags": 0, "loop": None, "rest": b"", "figures": False, "interrupted": False, "nonce": None, "values": 0, "shell": None}

    def send(message):
        """Sends a line. If that is too long, or can't be JSON, it returns False."""
        try:
            line = dumps(message, default=str, allow_nan=False).encode() + b"\n"
        except (TypeError, ValueError, RecursionError):
            return False
        if len(line) > max_line:
            return False
        try:
            state["conn"].sendall(line)
        except (OSError, AttributeError):
            pass  # the server has gone: another one connects
        return True

    def put(fd, text):
        """Writes a mark, and returns whether that was possible."""
        text = b"\x1e" + text.encode() + b"\x1e"
        try:
            while text:
                text = text[write(fd, text):]
        except OSError:
            return False
        return True

    def flush(stream):
        try:
            getattr(sys, stream).flush()
        except Exception:
            pass

    def mark(nonce):
        """Marks a place in the outputs, and returns the sum of the numbers of those that have it."""
        written = 0
        for number, (fd, stream) in enumerate(zip(marks, ("stdout", "stderr")), 1):
            flush(stream)
            written += number * put(fd, nonce)
        return written

    def place():
        """Marks the place of a value in standard output, and returns its number, or 0."""
        if not state["nonce"] or getpid() != pid:
            return 0
        flush("stdout")
        state["values"] += 1
        held = state["running"] and get_ident() == main_thread  # an interrupt must not cut the mark off
        if held:
            state["running"] = False
        placed = put(marks[0], "%s\x1f%d" % (state["nonce"], state["values"]))
        if held:
            state["running"] = True
            if state["interrupted"]:
                state["interrupted"] = False
                raise KeyboardInterrupt
        return state["values"] if placed else 0

    # Values.

    formats = {
        "text/plain": "text", "text/html": "html", "text/markdown": "markdown", "image/svg+xml": "svg",
        "text/latex": "latex", "application/javascript": "javascript", "application/json": "json",
        "image/png": "png", "image/jpeg": "jpeg", "application/pdf": "pdf",
    }
    methods = {
        "_repr_html_": "text/html", "_repr_markdown_": "text/markdown", "_repr_svg_": "image/svg+xml",
        "_repr_png_": "image/png", "_repr_jpeg_": "image/jpeg", "_repr_pdf_": "application/pdf",
        "_repr_latex_": "text/latex", "_repr_json_": "application/json", "_repr_javascript_": "application/javascript",
    }
    binary = ("png", "jpeg", "pdf")

    def bundle(value):
        """Returns the formats of a value by their media types."""
        found = {}
        special = not isinstance(value, type)
        if special and callable(getattr(type(value), "_repr_mimebundle_", None)):
            try:
                made = value._repr_mimebundle_(include=None, exclude=None)
                found.update(made[0] if isinstance(made, tuple) else made or {})
            except NotImplementedError:
                pass
        for name, kind in methods.items() if special else ():
            if kind not in found and callable(getattr(type(value), name, None)):
                try:
                    made = getattr(value, name)()
                except NotImplementedError:
                    continue
                if isinstance(made, tuple):  # with metadata
                    made = made[0]
                if made is not None:
                    found[kind] = made
        if is_figure(value) and "image/png" not in found:
            found["image/png"] = png(value)
        if "text/plain" not in found:
            found["text/plain"] = repr(value)
        return found

    def display(*values, raw=False, main=False, **ignored):
        """Displays values, or with raw=True formats by their media types."""
        for value in values:
            message = {"output": {"main": main}}
            out, extra = message["output"], {}
            for kind, content in (value if raw else bundle(value)).items():
                field = formats.get(kind)
                if field in binary:
                    out[field] = content if isinstance(content, str) else base64.b64encode(content).decode()
                elif field == "json":
                    out[field] = content
                elif field:
                    out[field] = str(content)
                elif isinstance(content, (str, int, float, list, dict)):
                    extra[str(kind)] = content if isinstance(content, str) else json.dumps(content, default=str)
            if extra:
                out["extra"] = extra
            pandas = sys.modules.get("pandas")
            if not raw and pandas is not None and isinstance(value, getattr(pandas, "DataFrame", ())) and len(value) <= 10000:
                try:
                    out["data"] = json.loads(value.to_json(orient="split", date_format="iso"))
                    out["data"] = {str(c): [row[i] for row in out["data"]["data"]] for i, c in enumerate(out["data"]["columns"])}
                except Exception:
                    out.pop("data", None)
            if not raw and is_figure(value):
                try:
                    out["chart"] = charts_of(value)
                except Exception:
                    pass  # it has its image
            held = lock.acquire(True, 1)  # values of threads have their places in turn
            try:
                if not main:  # that comes after everything else
                    message["after"] = place()
                if send(message):
                    continue
                out.pop("data", None)
                out.pop("chart", None)
                message["truncated"] = True
                if send(message):
                    continue
                message["output"] = {"main": main, "text": "(%s can't be displayed: it is too large, or not JSON)" % type(value).__name__}
                send(message)
            finally:
                if held:
                    lock.release()

    # Figures of matplotlib, if the image has it.

    def is_figure(value):
        figure = sys.modules.get("matplotlib.figure")
        return figure is not None and isinstance(value, figure.Figure)

    def png(figure):
        content = io.BytesIO()
        figure.savefig(content, format="png", bbox_inches="tight")
        return content.getvalue()

    def show(*args, **kwargs):
        """Displays all open figures and closes them. It replaces matplotlib.pyplot.show."""
        pyplot = sys.modules["matplotlib.pyplot"]
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            if figure.axes or figure.texts:
                display(figure)
            pyplot.close(figure)

    def patch_pyplot(module):
        module.show = show
        note_boxes(sys.modules["matplotlib.axes"].Axes)
        state["figures"] = True

    # The event loop that all runs share. Blocks that await run in it, and others can create tasks in it.

    def shared_loop():
        import asyncio
        loop = state["loop"]
        if loop is None or loop.is_closed():
            loop = state["loop"] = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
        return loop

    def has_tasks():
        loop = state["loop"]
        return loop is not None and not loop.is_closed() and bool(__import__("asyncio").all_tasks(loop))

    def patch_asyncio(module):
        import threading
        running = module.get_running_loop

        def in_block():
            return state["running"] and getpid() == pid and threading.current_thread() is threading.main_thread()

        def get_running_loop():
            try:
                return running()
            except RuntimeError:
                if not in_block():
                    raise
                return shared_loop()

        module.get_running_loop = module.events.get_running_loop = get_running_loop
        if in_block():
            shared_loop()  # get_event_loop returns it

    # IPython, of which code of notebooks imports display and more. If the image has it, its display is ours; otherwise
    # ipython.py stands in for it.

    def ipython_names():
        scope = {}
        exec(compile(setup["ipython"], "<ipython>", "exec"), scope)  # only now: it takes milliseconds
        return scope["ipython_display"](display)

    def patch_display(module):
        ours = ipython_names()
        for name in ("display", "update_display", "publish_display_data", "clear_output"):
            if name in vars(module):
                setattr(module, name, ours[name])

    def patch_shell(module):
        module.get_ipython = shell

    class StandIn:
        """Finds modules of IPython that nothing else finds."""

        modules = ("IPython", "IPython.display", "IPython.core", "IPython.core.display", "IPython.core.getipython", "IPython.core.pylabtools")
        names = {}

        def find_spec(self, name, path=None, target=None):
            if name in self.modules and not path:  # those of an IPython that is installed have a path
                return importlib.machinery.ModuleSpec(name, self, is_package=name in ("IPython", "IPython.core"))

        def create_module(self, spec):
            return None

        def exec_module(self, module):
            if module.__name__.endswith("display"):
                self.names = self.names or ipython_names()
                module.__dict__.update(self.names)
            elif module.__name__ == "IPython":
                module.get_ipython, module.version_info = shell, (8, 24, 0)  # at which matplotlib looks
                __import__("IPython.display")
            elif module.__name__.endswith("pylabtools"):
                module.backend2gui = {}

    class Hook:
        """Changes modules when they are imported."""

        patches = {
            "asyncio": patch_asyncio, "matplotlib.pyplot": patch_pyplot,
            "IPython.core.display": patch_display, "IPython.core.display_functions": patch_display, "IPython.core.getipython": patch_shell,
        }

        def find_spec(self, name, path=None, target=None):
            patch, spec = self.patches.get(name), None
            for finder in sys.meta_path if patch else ():
                spec = spec or finder is not self and hasattr(finder, "find_spec") and finder.find_spec(name, path, target) or None
            if spec is None or not hasattr(spec.loader, "exec_module"):
                return spec
            load = spec.loader.exec_module

            def exec_module(loaded):
                load(loaded)
                if loaded.__name__ == name:
                    patch(loaded)

            spec.loader.exec_module = exec_module
            return spec

    for name, patch in Hook.patches.items():
        if name in sys.modules:
            patch(sys.modules[name])
    sys.meta_path.insert(0, Hook())
    sys.meta_path.append(StandIn())
    builtins.display = display

    # Packages that are installed after the start.

    def add_user_site():
        """Adds the user's directory of packages, which Python adds only if it exists, with a finder that waits for it."""
        directory, machinery = site.getusersitepackages(), importlib.machinery
        if not site.ENABLE_USER_SITE or directory in sys.path:
            return
        others = [i for i, entry in enumerate(sys.path) if entry in site.getsitepackages()]
        sys.path.insert(others[0] if others else len(sys.path), directory)
        sys.path_importer_cache[directory] = machinery.FileFinder(
            directory, (machinery.ExtensionFileLoader, machinery.EXTENSION_SUFFIXES),
            (machinery.SourceFileLoader, machinery.SOURCE_SUFFIXES), (machinery.SourcelessFileLoader, machinery.BYTECODE_SUFFIXES))

    def find_packages():
        """Has imports look at directories again. It is importlib.invalidate_caches without what that imports."""
        try:
            for entry, finder in list(sys.path_importer_cache.items()):
                if finder is None:
                    del sys.path_importer_cache[entry]
                elif hasattr(finder, "invalidate_caches"):
                    finder.invalidate_caches()
        except Exception:
            pass  # the code has changed them

    # Magics of notebooks.

    def shell():
        """Returns what get_ipython returns."""
        if state["shell"] is None:
            scope = {}
            exec(compile(setup["magics"], "<magics>", "exec"), scope)  # only now: it takes milliseconds
            state["shell"] = scope["ipython_shell"](namespace, perform, find_packages, ipython_names)
        builtins.__sandpit_ipython__ = state["shell"]  # which the code may have removed
        return state["shell"]

    builtins.get_ipython = shell

    # Runs.

    def on_interrupt(number, frame):
        if state["running"]:
            raise KeyboardInterrupt
        state["interrupted"] = True

    def finish(coroutine):
        """Runs a coroutine to its end, in the event loop that all runs share."""
        loop = shared_loop()
        task = loop.create_task(coroutine)
        try:
            return loop.run_until_complete(task)
        except (KeyboardInterrupt, SystemExit):
            if task.done():
                task.cancelled() or task.exception()  # asyncio tells of those that nobody has looked at
                raise
            task.cancel()
            try:
                loop.run_until_complete(task)
            except BaseException:
                pass
            raise

    def evaluate(tree, name, mode, scope):
        flags = state["flags"] | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(tree, name, mode, flags, dont_inherit=True)
        state["flags"] |= code.co_flags & features
        value = eval(code, namespace, scope)
        return finish(value) if code.co_flags & 0x80 else value  # CO_COROUTINE

    def perform(source, name, scope=None):
        """Executes code, and returns the value of its last expression, and whether it is to be displayed."""
        flags = state["flags"] | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST
        try:
            tree = compile(source, name, "exec", flags, dont_inherit=True)
        except SyntaxError:
            if not any(mark in source for mark in ("!", "%", "?", "pip")):
                raise
            tree = None
        if tree is None:
            source = shell().python(source, name)
            tree = compile(source, name, "exec", flags, dont_inherit=True)
        last = None
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = tree.body.pop()
        if tree.body:
            evaluate(tree, name, "exec", scope)
        if last is None:
            return None, False
        lines = io.StringIO(source, newline=None).readlines()
        value = evaluate(ast.Expression(last.value), name, "eval", scope)
        end = lines[last.end_lineno - 1].encode()[last.end_col_offset:].lstrip() if last.end_lineno else b""
        return value, not end.startswith(b";")  # as notebooks have it

    def execute(source, name):
        first = next(filter(str.strip, source.split("\n")), "")
        indent = first[:len(first) - len(first.lstrip(" \t"))]
        if indent:  # of the whole block: it is removed, as notebooks have it
            source = ("\n" + source).replace("\n" + indent, "\n")[1:]
        linecache.cache[name] = (len(source), None, io.StringIO(source, newline=None).readlines(), name)
        value, shown = perform(source, name)
        if value is not None:
            builtins._ = value
            if shown:
                display(value, main=True)

    def clipped(text, most):
        return text if len(text) <= most else text[:most // 2] + "\n...\n" + text[-most // 2:]

    def cut_interrupt(error):
        """Cuts the frame of on_interrupt off the traceback of an exception, and of those before it."""
        for _ in range(100):
            if error is None:
                return
            trace = error.__traceback__
            while trace is not None and trace.tb_next is not None:
                if trace.tb_next.tb_frame.f_code is on_interrupt.__code__:
                    trace.tb_next = None
                trace = trace.tb_next
            error = error.__context__

    def status(exit):
        """Returns the status that a process has which a SystemExit ends."""
        code = SystemExit.code.__get__(exit)
        return 0 if code is None else int.__and__(code, 0xff) if issubclass(type(code), int) else 1

    def describe(error):
        """Describes an exception, with the frames of the user's code."""
        cut_interrupt(error)
        trace = error.__traceback__
        while trace is not None and not trace.tb_frame.f_code.co_filename.startswith("<run "):
            trace = trace.tb_next
        user = trace
        while user is not None and user.tb_next is not None:
            if user.tb_next.tb_frame.f_code.co_filename in (kernel.__code__.co_filename, "<magics>"):
                user.tb_next = user.tb_next.tb_next
            else:
                user = user.tb_next
        try:
            value = str(error)
        except Exception:
            value = "(its text can't be made)"
        try:
            text = "".join(traceback.format_exception(type(error), error, trace))
        except Exception:
            text = type(error).__name__ + ": " + value
        return {"name": type(error).__name__, "value": clipped(value, 32 << 10), "traceback": clipped(text, 64 << 10)}

    def run(request, count):
        """Runs a block."""
        mark(request["begin"])
        state["nonce"], state["values"] = request["run"], 0
        before = {}
        for name, value in (entry.partition("=")[::2] for entry in request.get("env") or ()):
            before.setdefault(name, os.environ.get(name))
            os.environ[name] = value
        handle(2, on_interrupt)  # SIGINT
        error, code = None, 0
        find_packages()
        try:
            try:
                state["running"] = True
                if state["interrupted"]:  # before it began
                    raise KeyboardInterrupt
                if state["loop"] is not None:
                    __import__("asyncio").set_event_loop(shared_loop())  # asyncio.run leaves none
                try:
                    execute(request["code"], "<run %d>" % count)
                except SystemExit as e:  # the interpreter stays, as in notebooks
                    code = status(e)
                    if code != 0:
                        raise
                if getpid() == pid and has_tasks():
                    finish(__import__("asyncio").sleep(0))  # those that the block has created begin
                if state["figures"]:
                    show()
            finally:
                state["running"] = False
        except BaseException as e:
            error, code = describe(e), code or 1
        if getpid() != pid:  # a child of os.fork, which has nothing more to do
            for stream in (sys.stdout, sys.stderr):
                try:
                    stream.flush()
                except Exception:
                    pass
            if error:
                os.write(2, error["traceback"].encode(errors="replace"))
            os._exit(code)
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        state["nonce"] = None
        marked = mark(request["run"])
        for fd in range(3):  # no connection must get the number of an output that the code has closed
            try:
                fstat(fd)
            except OSError:
                dup2((null, *marks)[fd], fd)
        send({"done": request["run"], "count": count, "marked": marked, "error": error})

    # The channel.

    def listen():
        nonlocal pid, marks, null, listener
        pid = os.getpid()
        marks, null = [os.dup(1), os.dup(2)], os.open(os.devnull, os.O_RDWR)  # code may close or replace its own
        listener = socket.socket(socket.AF_UNIX)
        for old in setup["stale"] + [setup["socket"]]:
            try:
                os.unlink(old)
            except OSError:
                pass
        umask = os.umask(0o177)
        listener.bind(setup["socket"])
        os.umask(umask)
        listener.listen(8)

    def readable():
        """Waits for a connection or a request, while the event loop goes on."""
        conn, loop = state["conn"], state["loop"]
        wanted = [listener] + ([conn] if conn else [])
        if not has_tasks():
            return ready_of(wanted, [], [])[0]
        ready = []
        waiting = loop.create_future()

        def came(which):
            ready.append(which)
            if not waiting.done():
                waiting.set_result(None)

        for which in wanted:
            loop.add_reader(which, came, which)
        try:
            loop.run_until_complete(waiting)
        finally:
            for which in wanted:
                loop.remove_reader(which)
        return ready

    def receive():
        """Returns the next request. A new connection replaces the one before."""
        while True:
            line, newline, rest = state["rest"].partition(b"\n")
            if newline:
                state["rest"] = rest
                return json.loads(line)
            ready = readable()
            if listener in ready:
                if state["conn"]:
                    state["conn"].close()
                state["conn"], state["rest"] = listener.accept()[0], b""
                state["interrupted"] = False  # that was about an earlier run
                send({"hello": 1, "dir": setup["dir"], "env": setup["env"], "runs": count})
            elif state["conn"] in ready:
                try:
                    part = state["conn"].recv(1 << 16)
                except OSError:
                    part = b""
                if not part:
                    state["conn"].close()
                    state["conn"] = None
                state["rest"] += part

    # A zygote: it runs no code, but forks contexts. See "Forks" in docs/guest-protocol.md.

    def branch(libc, over, directory, stdin, stdout, stderr, status):
        """Becomes a helper, which never returns, with a context, which returns its setup."""
        try:
            os.read(over, 1)  # until the guest is the parent
            os.close(over)
            signal.pthread_sigmask(signal.SIG_SETMASK, signal.valid_signals())
            os.setsid()
            if libc.prctl(36, 1, 0, 0, 0) != 0:  # PR_SET_CHILD_SUBREAPER
                os._exit(1)
            os.write(status, b"helper")
            if not os.read(status, 1):  # the guest has given up
                os._exit(1)
            context = os.fork()
            if context:
                supervise(context, status)
            os.setsid()
            for to, fd in enumerate((stdin, stdout, stderr)):
                os.dup2(fd, to)
                os.close(fd)
            errno = 0
            try:
                os.chdir(directory)
            except OSError as e:
                errno = e.errno
            os.write(status, b"%d" % errno)
            os.close(status)
            if errno:
                os._exit(1)
            libc.prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: its own code may be traced, unlike helper and zygote. Nobody gets its status socket
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for name in ("random", "numpy.random"):
                if name in sys.modules:
                    sys.modules[name].seed()
            if "uuid" in sys.modules:
                sys.modules["uuid"]._node = sys.modules["uuid"]._last_timestamp = None
            importlib.invalidate_caches()
            program = b""
            while True:
                part = os.read(0, 1 << 16)
                if not part:
                    return json.loads(base64.b64decode(program.split(b'"', 2)[1]))  # of its first line
                program += part
        except BaseException:
            os._exit(1)

    def supervise(context, status):
        """Waits for the context and for all that is left of it, and tells how it has ended."""
        for fd in map(int, os.listdir("/proc/self/fd")):
            try:
                if fd != status:
                    os.close(fd)
            except OSError:
                pass  # that of the list itself
        while True:
            try:
                ended, how, used = os.wait4(-1, 0)
            except ChildProcessError:
                os._exit(0)
            if ended == context:
                try:
                    os.write(status, b"%d %d %d %d" % (how, used.ru_utime * 1e6, used.ru_stime * 1e6, used.ru_maxrss))
                except OSError:
                    pass

    def zygote():
        """Forks a context for each request of the guest. It returns in those only, with their setups."""
        import array, ctypes, gc, struct
        libc = ctypes.CDLL(None)
        probe = os.fork()  # at which some libraries end their threads
        if probe == 0:
            os._exit(0)
        os.waitpid(probe, 0)
        if len(os.listdir("/proc/self/task")) > 1:
            raise SystemExit("a module has started threads, so this interpreter can't be forked")
        server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        server.bind("\0sandpit-zygote-%d" % os.getpid())
        server.listen(8)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        gc.collect()
        gc.freeze()  # so that forks share the memory of what there is
        libc.prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE: no code reads or changes it and its helpers
        mark(setup["nonce"])
        while True:
            asked = server.accept()[0]
            directory, fds = b"", array.array("i")
            if struct.unpack("3i", asked.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] == 1:  # the guest
                directory, control, _, _ = asked.recvmsg(1 << 13, socket.CMSG_SPACE(16), socket.MSG_CMSG_CLOEXEC)
                for _, _, data in control:
                    fds.frombytes(data)
            asked.close()
            if len(fds) == 4:
                over, held = os.pipe()
                try:
                    child = os.fork()
                    if child == 0:  # it ends, so that the helper becomes a child of the guest
                        try:
                            helper = os.fork()
                        except OSError:
                            os._exit(1)
                        if helper:
                            os._exit(0)
                        os.close(held)
                        server.close()
                        return branch(libc, over, directory, *fds)
                    os.waitpid(child, 0)
                except OSError:
                    pass  # at the limit of processes: the guest starts another interpreter, or says so
                os.close(held)
                os.close(over)
            for fd in fds:
                os.close(fd)

    signal.signal(signal.SIGINT, on_interrupt)
    count = 0
    add_user_site()
    os.environ.setdefault("PIP_BREAK_SYSTEM_PACKAGES", "1")  # the sandbox's Python is its own, or read-only
    os.environ["PATH"] = os.environ.get("PATH", os.defpath) + ":" + os.path.expanduser("~/.local/bin")  # where pip puts programs
    builtins.exit = builtins.quit = sys.exit  # those of the module site close standard input
    for module in setup.get("modules") or ():
        __import__(module)
    if setup.get("zygote"):
        setup = zygote()
        signal.signal(signal.SIGINT, on_interrupt)
    listen()
    mark(setup["nonce"])
    while True:
        try:
            request = receive()
            count += 1
            run(request, count)
        except (KeyboardInterrupt, SystemExit):  # of a task, between runs
            continue


kernel(__import__("json").loads(__import__("base64").b64decode(SETUP)))
