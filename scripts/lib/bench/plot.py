"""Bar and line charts as SVG, from nothing but text."""

import math
from html import escape

WIDTH, ROW = 720, 26
LEFT, RIGHT, TOP = 130, 90, 58
# Colour-blind safe (P. Tol, "bright").
COLOURS = ["#4477aa", "#66ccee", "#228833", "#ccbb44", "#ee6677", "#aa3377", "#888888"]
STYLE = ("text{font:13px sans-serif;fill:#222}.t{font-size:15px;font-weight:bold}"
         ".s{font-size:11px;fill:#666}.g{stroke:#ddd}.a{stroke:#444}")


def colour(name, names):
    return COLOURS[sorted(names).index(name) % len(COLOURS)]


def number(value):
    """Three digits that count."""
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    return f"{value:,.{min(digits, 4)}f}"


def ticks(highest, count=5):
    """Round numbers from 0 to at least `highest`."""
    if highest <= 0:
        return [0, 1]
    rough = highest / count
    power = 10 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * 0.999)
    return [i * step for i in range(math.ceil(highest / step - 1e-9) + 1)]


def document(height, parts):
    return (f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            f'width="{WIDTH}" height="{height}"><style>{STYLE}</style>'
            f'<rect width="100%" height="100%" fill="white"/>\n' + "\n".join(parts) + "\n</svg>\n")


def text(x, y, words, anchor="start", kind=""):
    return (f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" class="{kind}">'
            f'{escape(words)}</text>')


def line(x1, y1, x2, y2, kind):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def bars(title, unit, source, rows, names):
    """A bar for each (name, best, median): the bar is the best, the stroke in it the median."""
    marks = ticks(max((best for _, best, _ in rows), default=0))
    scale = (WIDTH - LEFT - RIGHT) / marks[-1]
    bottom = TOP + ROW * len(rows)
    parts = [text(12, 24, title, kind="t"), text(12, 42, source, kind="s")]
    for mark in marks:
        x = LEFT + mark * scale
        parts += [line(x, TOP, x, bottom, "g"), text(x, bottom + 16, number(mark), "middle", "s")]
    for i, (name, best, median) in enumerate(rows):
        y = TOP + i * ROW + 4
        parts += [
            text(LEFT - 8, y + 13, name, "end"),
            f'<rect x="{LEFT}" y="{y}" width="{max(best * scale, 0.5):.1f}" height="{ROW - 8}" '
            f'fill="{colour(name, names)}"/>',
            text(LEFT + best * scale + 6, y + 13, number(best)),
        ]
        if median != best:
            x = LEFT + median * scale
            parts.append(line(x, y, x, y + ROW - 8, "a"))
    parts += [line(LEFT, TOP, LEFT, bottom, "a"),
              text((LEFT + WIDTH - RIGHT) / 2, bottom + 34,
                   unit + "; bar: best round, stroke: median", "middle", "s")]
    return document(bottom + 46, parts)


def lines(title, unit, source, curves, names):
    """A line for each name: {name: [(x, y), …]}, x on a logarithmic axis. The title ends with what
    x is, after a colon."""
    left, right, top, bottom, height = 60, 160, 80, 350, 400
    points = [p for curve in curves.values() for p in curve]
    xs = sorted({x for x, _ in points})
    marks = ticks(max(y for _, y in points))
    span = math.log(xs[-1] / xs[0]) or 1

    def place(x, y):
        return (left + math.log(x / xs[0]) / span * (WIDTH - left - right),
                bottom - y / marks[-1] * (bottom - top))

    parts = [text(12, 24, title, kind="t"), text(12, 42, source, kind="s"),
             text(12, 66, unit + ", best round", kind="s")]
    for mark in marks:
        y = place(xs[0], mark)[1]
        parts += [line(left, y, WIDTH - right, y, "g"),
                  text(left - 6, y + 4, number(mark), "end", "s")]
    for x in xs:
        parts.append(text(place(x, 0)[0], bottom + 18, f"{x:,}", "middle", "s"))
    for i, (name, curve) in enumerate(sorted(curves.items())):
        paint = colour(name, names)
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*p) for p in sorted(curve)))
        parts.append(f'<polyline points="{path}" fill="none" stroke="{paint}" stroke-width="2"/>')
        for p in curve:
            x, y = place(*p)
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5" fill="{paint}"/>')
        y = top + 10 + 20 * i
        box = f'x="{WIDTH - right + 16}" y="{y - 9}" width="12" height="12"'
        parts += [f'<rect {box} fill="{paint}"/>',
                  text(WIDTH - right + 34, y + 2, name)]
    parts += [line(left, top, left, bottom, "a"), line(left, bottom, WIDTH - right, bottom, "a"),
              text((left + WIDTH - right) / 2, bottom + 38, title.split(": ")[-1], "middle", "s")]
    return document(height, parts)
