"""The steps of a chapter under the roofline of the ceilings that the programs measured.

The intensity of a step is its FLOP per byte that must move to or from device memory; the actual
traffic may be larger. All steps from 02 on must move the same bytes, so they are in one column.
"""

import math

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plots.figures import style
from plots.figures.labels import End, label_ends
from plots.figures.records import HEADLINE, QUERIES, Results, name_of
from plots.figures.style import Theme
from plots.figures.tflops import DTYPE

NAME = "roofline"
HEAD_DIM = HEADLINE["head_dim"]
CEILINGS = {"ceiling_wgmma_tflops": "wgmma", "ceiling_mma_tflops": "mma.sync", "ceiling_ffma_tflops": "fp32 FFMA"}


def data(results: Results, chapter: list[str]) -> dict | None:
    records = [record for record in results.panel(HEAD_DIM, "full", DTYPE) if "step" in record]
    if not any("ceiling_mma_tflops" in record for record in records):
        return None
    steps: dict[str, list] = {}
    for record in records:
        steps.setdefault(name_of(record), []).append(
            {
                "n": record["seqlen"],
                "intensity": record["flops"] / record["must_move_bytes"],
                "tflops": record["tflops"],
            }
        )
    chapter = [step for step in chapter if step.removeprefix("step") in steps]
    if not chapter:
        return None
    return {
        "figure": NAME,
        "chapter": chapter,
        "origin": results.origin(),
        "steps": dict(sorted(steps.items())),
        "ceilings": {
            field: records[0][field] for field in (*CEILINGS, "ceiling_copy_gb_per_s") if records[0].get(field)
        },
    }


def draw_roof(
    axes: Axes, ceilings: dict, left: float, right: float, theme: Theme, memory: str = "device memory copy"
) -> list[End]:
    """Draws the slope of device memory, whose speed is that of `memory`, and a flat roof for each unit. Returns the
    labels of these."""
    per_byte = ceilings["ceiling_copy_gb_per_s"] * 1e-3  # TFLOP/s at one operation a byte
    roofs = {name: ceilings[field] for field, name in CEILINGS.items() if field in ceilings}
    top = max(roofs.values())
    axes.plot([left, top / per_byte], [left * per_byte, top], color=theme.text, linewidth=1.4)
    (x0, y0), (x1, y1) = axes.transData.transform([(left, left * per_byte), (top / per_byte, top)])
    axes.annotate(
        f"{memory}: {per_byte:.2f} TB/s",
        (left * 1.2, left * 1.2 * per_byte),
        (-2, 4),
        textcoords="offset points",
        rotation=math.degrees(math.atan2(y1 - y0, x1 - x0)),
        rotation_mode="anchor",
        fontsize=style.SMALL,
    )
    for speed in roofs.values():
        axes.plot(
            [speed / per_byte, right],
            [speed, speed],
            color=theme.text,
            linewidth=1.4,
            linestyle="-" if speed == top else (0, (5, 3)),
        )
    return [
        End(right, speed, f"{name}: {speed:.3g}", theme.text, bold=True)
        for name, speed in roofs.items()
        if axes.get_ylim()[0] < speed
    ]


def draw_step(axes: Axes, name: str, points: list[dict], theme: Theme) -> End:
    """Draws a small mark for each length, and a large one for that of the README's table."""
    look = style.look_of(theme, f"step{name}")
    x = [point["intensity"] for point in points]
    y = [point["tflops"] for point in points]
    axes.plot(x, y, **look, linewidth=1, markersize=4)
    for point in points:
        if point["n"] == HEADLINE["seqlen"]:
            axes.plot(
                point["intensity"],
                point["tflops"],
                **look,
                markersize=8,
                markeredgecolor=theme.text,
                markeredgewidth=0.7,
                zorder=3,
            )
    return End(x[-1], y[-1], name, look["color"])


def draw(found: dict, theme: Theme) -> Figure:
    height = 5.0
    figure = style.new_figure(
        height,
        f"The roofline: {style.steps_text(found['chapter'])}",
        f"Forward pass, {DTYPE}, no mask, D = {HEAD_DIM}, B·N = {QUERIES}. {found['origin']}\n"
        f"A mark for each N; the large one is N = {HEADLINE['seqlen']}, B = {HEADLINE['batch']}. "
        "Bold: TFLOP/s of a ceiling. Grey: other steps.",
    )
    axes = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.83, top=1 - 0.85 / height, bottom=0.72 / height)
    own = {name: trail for name, trail in found["steps"].items() if f"step{name}" in found["chapter"]}
    points = [point for trail in own.values() for point in trail]
    roofs = [found["ceilings"][field] for field in CEILINGS if field in found["ceilings"]]
    bottom = min(point["tflops"] for point in points) / 2
    ridge = min(roof for roof in roofs if roof > bottom) / (found["ceilings"]["ceiling_copy_gb_per_s"] * 1e-3)
    left = 2.0 ** math.floor(math.log2(min(ridge, *(point["intensity"] for point in points))) - 1)
    right = 1.3 * max(point["intensity"] for trail in found["steps"].values() for point in trail)
    style.log_ticks(axes, "x", [2.0**i for i in range(20) if left <= 2.0**i <= right])
    style.log_ticks(axes, "y", [digit * 10**i for i in range(4) for digit in (1, 2, 3, 5, 7)])
    axes.set_xlim(left, right)
    axes.set_ylim(bottom, 1.7 * max(roofs))
    labels = draw_roof(axes, found["ceilings"], left, right, theme)
    for trail in (trail for name, trail in found["steps"].items() if name not in own):
        axes.plot(
            [point["intensity"] for point in trail],
            [point["tflops"] for point in trail],
            color=theme.behind,
            linewidth=1.2,
            zorder=1.5,
        )
    label_ends(axes, labels + [draw_step(axes, name, trail, theme) for name, trail in own.items()])
    axes.set_xlabel(
        "FLOP for each byte that must pass device memory\n"
        "(Q, K, V read once, O and LSE written once; "
        "S and P where they leave the chip)"
    )
    axes.set_ylabel("TFLOP/s")
    return figure
