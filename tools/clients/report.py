"""Reports which public methods of a client work with a server of Sandpit, as report.mjs does.

Which methods exist is read from the classes of the client, and which were really called from the interpreter's trace."""

import asyncio
import gc
import importlib.metadata
import inspect
import json
import sys
import threading

# A stream of httpcore 1.0 that the collector finds while the pool is locked ends by waiting for that lock, in the same thread.
gc.disable()

called = set()  # (file, qualified name) of each function that was called


def _trace(frame, _event, _arg):
    called.add((frame.f_code.co_filename, frame.f_code.co_qualname))


threading.settrace(_trace)
sys.settrace(_trace)


def _profile(_frame, event, arg):
    if event == "c_call":
        called.add((None, getattr(arg, "__qualname__", None)))


def _place(cls, key):
    """Returns what called has of a method, whose file is None if it is not written in Python."""
    file = getattr(sys.modules[cls.__module__], "__file__", None)
    return file and file.endswith(".py") and file or None, f"{cls.__qualname__}.{key}"


def since(version, least):
    """Reports whether a version is at least another: since("2.10.0", "2.6.4") is True."""
    return [int(n) for n in version.split(".")] >= [int(n) for n in least.split(".")]


UNCHECKED = object()  # what a program returns if it can't check its methods on this machine


class Report:
    """Collects what becomes of the methods of a client, which is a package whose version is given with them."""

    def __init__(self, client, package):
        self.client, self.version = client, importlib.metadata.version(package)
        self.methods, self.statuses = {}, {}

    def add(self, name, cls, base=object):
        """Adds the public methods of a class that its base does not have."""
        for key in dir(cls):
            found = inspect.getattr_static(cls, key)
            if not key.startswith("_") and not hasattr(base, key) and callable(getattr(cls, key)) and not inspect.isclass(found):
                self.methods[f"{name}.{key}"] = _place(next(c for c in cls.__mro__ if key in vars(c)), key)
                if self.methods[f"{name}.{key}"][0] is None:
                    threading.setprofile(_profile)
                    sys.setprofile(_profile)

    def _matching(self, patterns):
        for p in patterns.split():
            yield from [m for m in self.methods if (m.startswith(p[:-1]) if p.endswith("*") else m == p)]

    def works(self, patterns, run):
        """Runs a program that uses methods and checks what they do."""
        self._run(patterns, run, "works", None)

    def sent(self, patterns, run):
        """Runs a program that checks that the requests of methods arrive as they should, and not what they do."""
        self._run(patterns, run, "sent", None)

    def lacks(self, reason, patterns, run=None):
        """Runs a program that checks that the server refuses methods by name. Methods that nothing can call since the server
        refuses what comes before are listed with no program."""
        self._run(patterns, run, "not yet", reason)

    def refused(self, reason, patterns, run):
        """Runs a program that checks that the client refuses methods itself."""
        self._run(patterns, run, "refused by the client", reason)

    def unused(self, reason, patterns):
        """Lists methods of what programs never get, since the client refuses what comes before."""
        self._run(patterns, None, "refused by the client", reason)

    def _run(self, patterns, run, status, reason):
        methods = list(self._matching(patterns))
        if not methods:
            return
        if run:
            try:
                if run() is UNCHECKED:
                    self.statuses.update(dict.fromkeys(methods, ("unchecked", None, False)))
                    return
            except BaseException as error:
                raise AssertionError(f"{self.client} {self.version}: {patterns}") from error
        for m in methods:
            self.statuses.setdefault(m, (status, reason, bool(run)))

    def end(self):
        """Prints the report. It fails if a method was forgotten, or is reported but was not called."""
        forgotten = [m for m in self.methods if m not in self.statuses]
        assert not forgotten, f"methods of {self.client} {self.version} that are not reported: {forgotten}"
        uncalled = [m for m, place in self.methods.items() if self.statuses[m][2] and place not in called]
        assert not uncalled, f"methods that were not called: {uncalled}"
        for method in self.methods:
            status, reason, _ = self.statuses[method]
            print(json.dumps({"client": self.client, "version": self.version, "method": method, "status": status, "reason": reason}))


class Blocking:
    """Lets a program for a synchronous client use an asynchronous one: coroutines are run to their end, on a loop in
    a thread of its own, and objects of the same package that they return are wrapped, too."""

    loop = None

    def __init__(self, target):
        if Blocking.loop is None:
            Blocking.loop = asyncio.new_event_loop()
            threading.Thread(target=Blocking.loop.run_forever, daemon=True).start()
        self.target = target

    def __getattr__(self, name):
        return Blocking._wrap(getattr(self.target, name))

    def __call__(self, *args, **kwargs):
        async def call():  # in the loop, which some calls expect although they are not coroutines
            result = self.target(*args, **kwargs)
            result = await result if inspect.isawaitable(result) else result
            return [x async for x in result] if hasattr(result, "__aiter__") else result

        return Blocking._wrap(asyncio.run_coroutine_threadsafe(call(), Blocking.loop).result())

    @staticmethod
    def _wrap(x):
        """Wraps what can have coroutines."""
        if inspect.isroutine(x) or inspect.isclass(x):
            return Blocking(x)
        own = any(inspect.iscoroutinefunction(f) for _, f in inspect.getmembers(type(x), callable))
        return Blocking(x) if own else x
