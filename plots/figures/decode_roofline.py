"""Decode steps under the roofline: the slope is that of a kernel that only reads K and V.

With one query an operation is done for each byte; heads of a group and several queries share what is
read. So there is a column for each number of rows that have the same K and V.
"""

from matplotlib.figure import Figure

from plots.bench.decode import DecodeCase, decode_cases
from plots.figures import style
from plots.figures.decode import DecodeResults
from plots.figures.labels import End, label_ends
from plots.figures.roofline import draw_roof
from plots.figures.style import Theme
from tests.lib.steps import step_names

NAME = "decode_roofline"
HEAD_DIM = 128
ROOFS = ("ceiling_mma_tflops", "ceiling_ffma_tflops")


def operations(case: DecodeCase) -> int:
    """Of both products, for the keys that the queries attend to under the causal mask."""
    keys = sum(int(case.each_length.sum()) - case.batch * behind for behind in range(case.seqlen))
    return 4 * case.head_dim * case.heads * keys


def columns() -> dict[int, DecodeCase]:
    """For each number of rows with the same K and V the case with the most bytes, then with the most sequences."""
    found: dict[int, DecodeCase] = {}
    for case in decode_cases():
        plain = case.page_size == 0 and case.even() and case.kv_dtype == case.dtype
        if not plain or case.head_dim != HEAD_DIM:
            continue
        rows = case.heads // case.kv_heads * case.seqlen
        found[rows] = max(found.get(rows, case), case, key=lambda case: (case.tensor_bytes(), case.batch))
    return dict(sorted(found.items()))


def data(results: DecodeResults) -> dict | None:
    """The data of all steps; None if none was measured with the ceilings."""
    steps, first = {}, None
    for step in step_names("decode"):
        for rows, case in columns().items():
            if not (record := results.of(case, step)):
                continue
            point = {
                "rows": rows,
                "case": str(case),
                "intensity": operations(case) / record["cache_bytes"],
                "tflops": operations(case) / record["median_ms"] * 1e-9,
            }
            steps.setdefault(step.removeprefix("step"), []).append(point)
            if first is None or record["cache_bytes"] > first["cache_bytes"]:
                first = record
    if first is None or not all(first.get(roof) for roof in ROOFS):
        return None
    reads = first["cache_bytes"] / first["read_ms"] * 1e-6
    return {
        "figure": NAME,
        "origin": results.origin(),
        "steps": steps,
        "ceilings": {roof: first[roof] for roof in ROOFS} | {"ceiling_copy_gb_per_s": reads},
    }


def draw(found: dict, theme: Theme) -> Figure:
    height = 5.2
    shown = [f"step{name}" for name in found["steps"]]
    figure = style.new_figure(
        height,
        f"The roofline of decode: {style.steps_text(shown)}",
        f"bf16, D = {HEAD_DIM}, the largest cache of each column. {found['origin']}\n"
        "A column for each number of rows of Q with the same K and V: heads of a group times queries. "
        "Bold: TFLOP/s of a ceiling.",
    )
    axes = figure.subplots()
    figure.subplots_adjust(left=0.085, right=0.83, top=1 - 0.85 / height, bottom=0.6 / height)
    points = [point for trail in found["steps"].values() for point in trail]
    left, right = 0.7, 1.4 * max(point["intensity"] for point in points)
    ridge = max(found["ceilings"][roof] for roof in ROOFS) / found["ceilings"]["ceiling_copy_gb_per_s"] * 1e3
    style.log_ticks(axes, "x", [2.0**i for i in range(10) if left <= 2.0**i <= max(right, ridge)])
    style.log_ticks(axes, "y", [digit * 10.0**i for i in range(-2, 4) for digit in (1, 2, 5)])
    axes.set_xlim(left, 1.3 * max(right, ridge))
    axes.set_ylim(min(point["tflops"] for point in points) / 1.5, 1.7 * max(found["ceilings"][roof] for roof in ROOFS))
    ends = draw_roof(axes, found["ceilings"], left, axes.get_xlim()[1], theme, "a kernel that only reads")
    for name, trail in found["steps"].items():
        look = style.look_of(theme, f"step{name}")
        x, y = ([point[field] for point in trail] for field in ("intensity", "tflops"))
        axes.plot(x, y, **look, linewidth=1.2)
        ends.append(End(x[-1], y[-1], name, look["color"]))
    label_ends(axes, ends)
    axes.set_xlabel("FLOP for each byte of K and V")
    axes.set_ylabel("TFLOP/s")
    return figure
