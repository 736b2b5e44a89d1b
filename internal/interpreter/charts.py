# The data of charts, read from figures of matplotlib, in the form that clients of E2B know.


def charts_of(figure):
    """Returns the chart of a figure; None if it has none, a chart of charts if it has several."""
    import datetime, math, re

    def label_of(artist):
        label = str(artist.get_label())
        return "" if label.startswith("_") else label

    def number(value):
        value = float(value)
        return value if math.isfinite(value) else None

    class Axis:
        """One axis of a chart."""

        def __init__(self, axes, name):
            axis = getattr(axes, name + "axis")
            self.label = getattr(axes, "get_%slabel" % name)()
            unit = re.search(r"[(\[]([^()\[\]]*)[)\]]\s*$", self.label)
            self.unit = unit.group(1) if unit else None
            self.scale = getattr(axes, "get_%sscale" % name)()
            locator, formatter = axis.get_major_locator(), axis.get_major_formatter()
            converter = type(axis.get_converter() if hasattr(axis, "get_converter") else axis.converter).__name__
            self.places = [float(v) for v in axis.get_majorticklocs()]
            self.tick_labels = [str(t) for t in formatter.format_ticks(self.places)]
            if converter in ("_SwitchableDateConverter", "DateConverter", "ConciseDateConverter", "DatetimeConverter"):
                self.scale = "datetime"
            elif converter == "StrCategoryConverter":
                self.scale = "categorical"
            self.named = self.scale == "categorical" or type(locator).__name__ == "FixedLocator" and type(formatter).__name__ in ("FixedFormatter", "FuncFormatter")
            self.ticks = [self.value(v) for v in self.places]

        def value(self, place):
            if self.scale == "datetime":
                from matplotlib.dates import num2date
                return num2date(place).isoformat()
            return self.name(place) if self.scale == "categorical" else number(place)

        def name(self, place):
            """Returns the name of a place: that of the next tick, if ticks have names."""
            place = float(place)
            if self.named and self.places:
                i = min(range(len(self.places)), key=lambda i: abs(self.places[i] - place))
                if abs(self.places[i] - place) <= 0.5:
                    return self.tick_labels[i]
            value = self.value(place) if self.scale == "datetime" else "%g" % place
            return str(value)

    def chart_of(axes):
        bars = [c for c in axes.containers if type(c).__name__ == "BarContainer"]
        pies = [p for p in axes.patches if type(p).__name__ == "Wedge"]
        dots = [c for c in axes.collections if type(c).__name__ == "PathCollection"]
        boxes = getattr(axes, "_sandpit_boxes", ())
        chart = {"title": axes.get_title()}
        if pies:
            elements = [{"label": label_of(p), "angle": number(abs(p.theta2 - p.theta1)), "radius": number(p.r)} for p in pies]
            return {"type": "pie", "elements": elements, **chart}
        x, y = Axis(axes, "x"), Axis(axes, "y")
        chart.update(x_label=x.label, y_label=y.label, x_unit=x.unit, y_unit=y.unit)
        if boxes:
            elements = [{
                "label": str(b.get("label") or "") or (x if upright else y).name(at),
                "min": number(b["whislo"]), "first_quartile": number(b["q1"]), "median": number(b["med"]),
                "third_quartile": number(b["q3"]), "max": number(b["whishi"]), "outliers": [number(v) for v in b.get("fliers", ())],
            } for b, at, upright in boxes]
            return {"type": "box_and_whisker", "elements": elements, **chart}
        if bars:
            elements = []
            for group in bars:
                flat = getattr(group, "orientation", "vertical") == "horizontal"
                for p in group.patches:
                    at = p.get_y() + p.get_height() / 2 if flat else p.get_x() + p.get_width() / 2
                    elements.append({"label": (y if flat else x).name(at), "group": label_of(group), "value": number(p.get_width() if flat else p.get_height())})
            return {"type": "bar", "elements": elements, **chart}
        if axes.lines:
            kind, all = "line", [(label_of(l), zip(l.get_xdata(orig=False), l.get_ydata(orig=False))) for l in axes.lines]
        elif dots:
            kind, all = "scatter", [(label_of(c), c.get_offsets()) for c in dots]
        else:
            return {"type": "unknown", "elements": [], **chart} if axes.has_data() else None
        elements = [{"label": label, "points": [[x.value(a), y.value(b)] for a, b in points]} for label, points in all]
        chart.update(x_ticks=x.ticks, x_tick_labels=x.tick_labels, x_scale=x.scale, y_ticks=y.ticks, y_tick_labels=y.tick_labels, y_scale=y.scale)
        return {"type": kind, "elements": elements, **chart}

    charts = [c for c in map(chart_of, figure.axes) if c]
    if len(charts) < 2:
        return charts[0] if charts else None
    title = getattr(figure, "_suptitle", None)
    return {"type": "superchart", "title": title.get_text() if title else "", "elements": charts}


def note_boxes(axes):
    """Makes the class of axes remember the boxes of box plots, which a figure has only as lines."""
    draw = axes.bxp

    def bxp(self, bxpstats, positions=None, *args, **kwargs):
        drawn = draw(self, bxpstats, positions, *args, **kwargs)
        upright = kwargs.get("orientation", "vertical") == "vertical" and kwargs.get("vert") in (None, True)
        places = positions if positions is not None else range(1, len(bxpstats) + 1)
        self._sandpit_boxes = list(getattr(self, "_sandpit_boxes", ())) + [(b, at, upright) for b, at in zip(bxpstats, places)]
        return drawn

    axes.bxp = bxp
