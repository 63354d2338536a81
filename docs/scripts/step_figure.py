"""Draw docs/images/step.svg: one training step of SCE, for light and dark pages.

    python docs/scripts/step_figure.py [OUT.svg]

The bars show the paper's equations 3, 7 and 8 for the cosines below (eight keys, lambda 0.5, tau
0.1, tau_m 0.05). They are not a measurement.
"""
# ruff: noqa: RUF001 (the signs of formulas)

from __future__ import annotations

import math
import sys
from pathlib import Path

LAMBDA, TAU, TAU_M = 0.5, 0.1, 0.05
POSITIVE = 0.52  # cosine of query and key
QUERY_QUEUE = [0.10, 0.46, 0.05, 0.38, -0.10, 0.33, 0.15, 0.00]  # cosines with the queue's keys
KEY_QUEUE = [0.08, 0.50, 0.00, 0.44, -0.10, 0.39, 0.20, 0.05]

STYLE = """
  :root { --paper: #ffffff; --band: #f3f5f9; --line: #c3cad6; --ink: #1b2333; --soft: #55607a;
    --online: #2463d8; --online-soft: #e3ecfd; --target: #0b7d66; --target-soft: #dcf3ec;
    --queue: #7a3fc4; --queue-soft: #efe6fb; --loss: #c2490a; --loss-soft: #fdeadd; }
  @media (prefers-color-scheme: dark) { :root { --paper: #161b26; --band: #1e2533;
    --line: #465169; --ink: #e8ecf4; --soft: #a5b0c6; --online: #7eaaff; --online-soft: #1d2d4e;
    --target: #4fd0b0; --target-soft: #15382f; --queue: #c39bff; --queue-soft: #33244d;
    --loss: #ff9d66; --loss-soft: #442818; } }
  text { font-family: system-ui, "Segoe UI", Roboto, Helvetica, Arial, "DejaVu Sans", sans-serif;
    fill: var(--ink); font-size: 15px; }
  .small { font-size: 13px; fill: var(--soft); } .head { font-weight: 600; font-size: 16px; }
  .middle { text-anchor: middle; } .end { text-anchor: end; }
  .flow { fill: none; stroke-width: 2; } .after { stroke-dasharray: 6 5; }
"""


def softmax(logits: list[float]) -> list[float]:
    """Return the probabilities of logits."""
    weights = [math.exp(x - max(logits)) for x in logits]
    return [w / sum(weights) for w in weights]


def text(x: float, y: float, content: str, kind: str = "", colour: str = "") -> str:
    """Return a line of text. ``_x`` in the content is a subscript, ``^x`` a superscript."""
    style = f' style="fill: var(--{colour})"' if colour else ""
    for mark, shift in (("_", 4), ("^", -6)):
        first, *rest = content.split(mark)
        content = first + "".join(
            f'<tspan dy="{shift}" font-size="75%">{part[0]}</tspan><tspan dy="{-shift}">'
            f"{part[1:] or '&#8203;'}</tspan>"
            for part in rest
        )
    return f'<text x="{x}" y="{y}" class="{kind}"{style}>{content}</text>'


def box(x: float, y: float, width: float, height: float, colour: str, *lines: str) -> str:
    """Return a box with a centred heading and smaller lines."""
    parts = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="8" '
        f'style="fill: var(--{colour}-soft); stroke: var(--{colour})" stroke-width="1.5"/>'
    ]
    top = y + height / 2 + 5 - 10 * (len(lines) - 1)
    for i, line in enumerate(lines):
        kind = "head middle" if i == 0 else "small middle"
        parts.append(text(x + width / 2, top + 20 * i, line, kind))
    return "\n".join(parts)


def arrow(colour: str, *points: tuple[float, float], after: bool = False) -> str:
    """Return a line through points with a tip at its end, dashed if it happens after the step."""
    path = "M" + " L".join(f"{x} {y}" for x, y in points)
    dashed = " after" if after else ""
    return (
        f'<path class="flow{dashed}" d="{path}" style="stroke: var(--{colour})" '
        f'marker-end="url(#tip-{colour})"/>'
    )


def frames(x: float, y: float, colour: str, mirrored: bool) -> str:
    """Return a clip of four frames, one behind the other, the first one with a ball."""
    parts = []
    for t in reversed(range(4)):
        left, top = x + 16 * t, y + 9 * t
        parts.append(
            f'<rect x="{left}" y="{top}" width="78" height="58" rx="4" stroke-width="1.5" '
            f'style="fill: var(--{colour}-soft); stroke: var(--{colour})"/>'
        )
    ball = x + (56 if mirrored else 22)
    parts.append(
        f'<path d="M{x + 6} {y + 48} h66" style="stroke: var(--{colour})" opacity=".45"/>'
        f'<circle cx="{ball}" cy="{y + 36}" r="{9 if mirrored else 12}" '
        f'style="fill: var(--{colour})"/>'
    )
    return "\n".join(parts)


def bars(x: float, y: float, values: list[float | None], colours: list[str]) -> str:
    """Return a bar per key, 72 px for 0.6. None leaves the slot empty."""
    parts = [f'<path d="M{x - 8} {y} h344" style="stroke: var(--line)"/>']
    for i, (value, colour) in enumerate(zip(values, colours, strict=True)):
        left = x + 38 * i
        if value is None:
            parts.append(text(left + 12, y - 5, "none", "small middle"))
            continue
        height = max(1.5, 120 * value)
        parts.append(
            f'<rect x="{left}" y="{y - height:.1f}" width="24" height="{height:.1f}" rx="2" '
            f'style="fill: var(--{colour})"/>'
        )
    return "\n".join(parts)


def branches() -> list[str]:
    """Return the left side: views, networks, embeddings, and what changes after the step."""
    online, target = 112, 382
    parts = [
        text(20, 36, "Online branch", "head", "online"),
        text(20, 56, "trained by gradient", "small"),
        text(20, 306, "Target branch", "head", "target"),
        text(20, 326, "moving average, no gradient", "small"),
        frames(24, online - 42, "online", False),
        frames(24, target - 42, "target", True),
        text(24, online + 70, "view 1 of N videos", "small"),
        text(24, target + 70, "view 2: another clip, crop, colours", "small"),
    ]
    for y, colour, sign in ((online, "online", "s"), (target, "target", "t")):
        parts += [
            box(206, y - 36, 112, 72, colour, "backbone", f"f_{sign}"),
            box(350, y - 36, 112, 72, colour, "projector", f"g_{sign}"),
            arrow(colour, (154, y), (204, y)),
            arrow(colour, (318, y), (348, y)),
        ]
    parts += [
        box(494, online - 36, 112, 72, "online", "predictor", "h_s"),
        box(640, online - 36, 96, 72, "online", "query", "z^1, length 1"),
        box(640, target - 36, 96, 72, "target", "key", "z^2, length 1"),
        arrow("online", (462, online), (492, online)),
        arrow("online", (606, online), (638, online)),
        arrow("target", (462, target), (638, target)),
        arrow("soft", (262, 150), (262, 344), after=True),
        arrow("soft", (406, 150), (406, 344), after=True),
        text(274, 232, "target ← m·target", "small"),
        text(274, 252, "+ (1−m)·online", "small"),
        text(20, 516, "Queue: K keys of earlier steps, first in, first out", "head", "queue"),
    ]
    for k in range(8):
        parts.append(
            f'<rect x="{206 + 66 * k}" y="534" width="60" height="44" rx="6" stroke-width="1.5" '
            'style="fill: var(--queue-soft); stroke: var(--queue)"/>'
            + text(236 + 66 * k, 561, f"q_{k + 1}", "middle")
        )
    parts += [
        text(196, 552, "the oldest", "small end"),
        text(196, 570, "key leaves", "small end"),
        arrow("soft", (704, 418), (704, 532), after=True),
        text(694, 468, "the key enters", "small end"),
    ]
    return parts


def distributions() -> list[str]:
    """Return the right side: p1, the loss, w2, s2, and where they come from."""
    p1 = softmax([x / TAU for x in (POSITIVE, *QUERY_QUEUE)])
    s2 = softmax([x / TAU_M for x in KEY_QUEUE])
    w2 = [LAMBDA, *((1 - LAMBDA) * s for s in s2)]
    x, queue = 842, ["queue"] * 8
    parts = [
        text(x - 8, 40, "p^1 = softmax(z^1·[z^2, queue] / τ)", "head"),
        bars(x, 130, list(p1), ["target", *queue]),
        box(x - 8, 196, 344, 66, "loss", "loss = − mean Σ w^2 log p^1", "cross-entropy"),
        text(x - 8, 306, "w^2 = λ·[is the key z^2] + (1−λ)·s^2", "head"),
        bars(x, 394, list(w2), ["target", *queue]),
        text(x - 8, 456, "s^2 = softmax(z^2·queue / τ_m)", "head"),
        bars(x, 560, [None, *s2], ["target", *queue]),
        text(x + 12, 148, "key", "small middle", "target"),
        text(x + 12, 412, "key", "small middle", "target"),
    ]
    for k in range(8):
        for y in (148, 412, 578):
            parts.append(text(x + 50 + 38 * k, y, f"q_{k + 1}", "small middle", "queue"))
    parts += [
        arrow("loss", (1000, 156), (1000, 194)),
        arrow("loss", (1000, 290), (1000, 264)),
        arrow("soft", (1150, 450), (1150, 420)),
        text(1140, 440, "× (1−λ)", "small end"),
        # query and key to p1; key to s2; queue to both
        arrow("online", (736, 112), (826, 112)),
        arrow("target", (736, 370), (776, 370), (776, 126), (826, 126)),
        arrow("target", (736, 394), (776, 394), (776, 530), (826, 530)),
        arrow("queue", (734, 548), (826, 548)),
        arrow("queue", (734, 564), (802, 564), (802, 140), (826, 140)),
        # gradient
        arrow("loss", (832, 229), (550, 229), (550, 150)),
        text(564, 218, "gradient: online branch only", "small", "loss"),
    ]
    return parts


def drawing() -> str:
    """Return the SVG file."""
    tips = "".join(
        f'<marker id="tip-{c}" viewBox="0 0 10 10" refX="8" refY="5" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="M0 0 L10 5 L0 10 z" '
        f'style="fill: var(--{c})"/></marker>'
        for c in ("online", "target", "queue", "loss", "soft")
    )
    legend = [
        arrow("soft", (206, 634), (256, 634)),
        text(266, 639, "this step", "small"),
        arrow("soft", (372, 634), (422, 634), after=True),
        text(432, 639, "after the optimiser step", "small"),
        arrow("loss", (622, 634), (672, 634)),
        text(682, 639, "loss and gradient", "small"),
    ]
    parts = [*branches(), *distributions(), *legend]
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1200 664" width="1200" height="664" '
        'role="img" aria-label="One training step of SCE: two views, an online and a target '
        'branch, a queue, two distributions and their cross-entropy">\n'
        f"<style>{STYLE}</style>\n<defs>{tips}</defs>\n"
        '<rect width="1200" height="664" rx="12" style="fill: var(--paper)"/>\n'
        '<rect x="820" y="14" width="366" height="582" rx="10" style="fill: var(--band)"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    default = Path(__file__).resolve().parents[1] / "images/step.svg"
    Path(sys.argv[1] if len(sys.argv) > 1 else default).write_text(drawing(), encoding="utf-8")
