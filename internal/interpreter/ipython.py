# What code of notebooks imports from IPython.display, for images without IPython. See patch_display in kernel.py.
def ipython_display(show):
    import base64, html, json, os

    class DisplayObject:
        """Data in one format, from an argument, a file or a URL."""

        mode = "r"

        def __init__(self, data=None, url=None, filename=None, metadata=None):
            if isinstance(data, os.PathLike):
                data = os.fspath(data)
            if isinstance(data, str) and url is None and filename is None:
                if data.startswith("http"):
                    data, url = None, data
                elif len(data) < 4096 and "\0" not in data and os.path.isfile(data):
                    data, filename = None, data
            self.data, self.url, self.filename, self.metadata = data, url, None if filename is None else os.fspath(filename), metadata
            self.reload()

        def reload(self):
            if self.filename is not None:
                with open(self.filename, self.mode, encoding=None if "b" in self.mode else "utf-8") as f:
                    self.data = f.read()
            elif self.url is not None:
                import urllib.request
                with urllib.request.urlopen(self.url) as answer:
                    self.data = answer.read()
                    if "b" not in self.mode:
                        self.data = self.data.decode(answer.headers.get_content_charset() or "utf-8")

        def __repr__(self):
            return "<IPython.core.display.%s object>" % type(self).__name__

    class HTML(DisplayObject):
        def _repr_html_(self):
            return self.data

        __html__ = _repr_html_

    class Markdown(DisplayObject):
        def _repr_markdown_(self):
            return self.data

    class Latex(DisplayObject):
        def _repr_latex_(self):
            return self.data

    class Math(DisplayObject):
        def _repr_latex_(self):
            return r"$\displaystyle %s$" % self.data.strip("$")

    class SVG(DisplayObject):
        def _repr_svg_(self):
            return self.data.decode() if isinstance(self.data, bytes) else self.data

    class JSON(DisplayObject):
        def __init__(self, data=None, url=None, filename=None, expanded=False, metadata=None, root="root", **ignored):
            super().__init__(data, url, filename, metadata)

        def _repr_json_(self):
            return json.loads(self.data) if isinstance(self.data, (str, bytes)) else self.data

    class Javascript(DisplayObject):
        def __init__(self, data=None, url=None, filename=None, lib=None, css=None):
            super().__init__(data, url, filename)

        def _repr_javascript_(self):
            return self.data

    class Image(DisplayObject):
        mode = "rb"

        def __init__(self, data=None, url=None, filename=None, format=None, embed=None, width=None, height=None, metadata=None, alt=None, **ignored):
            self.embed, self.size, self.alt = embed, (("width", width), ("height", height)), alt
            super().__init__(data, url, filename, metadata)
            start = bytes(self.data[:12]) if isinstance(self.data, (bytes, bytearray, memoryview)) else b""
            found = [kind for kind, magic in (("png", b"\x89PNG\r\n\x1a\n"), ("jpeg", b"\xff\xd8"), ("gif", b"GIF8"), ("webp", b"RIFF")) if start.startswith(magic)]
            self.format = (format or (found or ["png"])[0]).lower().replace("jpg", "jpeg")

        def reload(self):
            if self.url is None or self.embed:
                super().reload()

        def _repr_mimebundle_(self, include=None, exclude=None):
            if self.data is None:
                attributes = [("src", self.url)] + [(name, value) for name, value in self.size + (("alt", self.alt),) if value]
                return {"text/html": "<img %s/>" % " ".join('%s="%s"' % (name, html.escape(str(value))) for name, value in attributes)}
            data = self.data if isinstance(self.data, str) else base64.b64encode(self.data).decode()
            return {"image/" + self.format: data}

    class DisplayHandle:
        """What display returns if it is given a display_id. An update is displayed as well: nothing is replaced."""

        def __init__(self, display_id):
            self.display_id = display_id

        def display(self, value, **options):
            show(value, **options)

        update = display

    def display(*values, display_id=None, **options):
        show(*values, **options)
        return DisplayHandle("display" if display_id is True else display_id) if display_id else None

    def update_display(value, *, display_id, **options):
        show(value, **options)

    def publish_display_data(data, metadata=None, **ignored):
        show(data, raw=True)

    def clear_output(wait=False):
        """Does nothing: what is displayed stays."""

    return {name: value for name, value in locals().items() if name not in ("show", "base64", "html", "json", "os")}
