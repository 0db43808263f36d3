"""How fast decode steps and baselines read K and V in each case of one query, beside a kernel that only
reads as many bytes and one that does nothing."""

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from plots.bench.decode import DecodeCase, decode_cases
from plots.figures import style
from plots.figures.decode import DecodeResults
from plots.figures.labels import LINE, End, label_ends
from plots.figures.records import SHORT_NAMES
from plots.figures.style import Theme
from tests.lib.steps import step_names

NAME = "decode"
HEAD_DIM = 128
LIMITS = {"read": "reads alone", "empty": "empty kernel"}
COLUMNS = 2
ABOVE, BETWEEN, BELOW = 1.25, 0.9, 0.6  # inches around the panels


def drawn_cases() -> list[DecodeCase]:
    """One query of each head, a contiguous cache of 16-bit numbers, sequences of the same length."""
    return [
        case
        for case in decode_cases()
        if case.head_dim == HEAD_DIM
        and case.seqlen == 1
        and case.page_size == 0
        and case.even()
        and case.kv_dtype == case.dtype
    ]


def panel_of(results: DecodeResults, cases: list[DecodeCase], names: dict[str, str]) -> dict | None:
    """The data of the cases with the same heads, sorted by bytes: TB/s, or None, of each name."""
    found: dict[str, dict] = {}  # by case: records by name
    for case in sorted(cases, key=lambda case: case.fields()["cache_bytes"]):
        records = {name: record for name in names if (record := results.of(case, name))}
        if records:
            found[f"{case.batch} × {case.lengths}"] = records
    if not found:
        return None
    first = [next(iter(records.values())) for records in found.values()]

    def speed(record: dict | None, field: str = "median_ms") -> float | None:
        return record["cache_bytes"] / record[field] * 1e-9 if record else None

    return {
        "heads": f"{cases[0].heads} / {cases[0].kv_heads}",
        "cases": list(found),
        "megabytes": [record["cache_bytes"] * 1e-6 for record in first],
        "limits": {name: [speed(record, f"{name}_ms") for record in first] for name in LIMITS},
        "curves": {
            label: speeds
            for name, label in names.items()
            if any(speeds := [speed(records.get(name)) for records in found.values()])
        },
    }


def data(results: DecodeResults) -> dict | None:
    """The data of all steps; None if none was measured."""
    steps = {name: name.removeprefix("step") for name in step_names("decode")}
    baselines = {short: SHORT_NAMES[short] for short in ("fa2", "cudnn", "fa3")}
    of_heads: dict[tuple[int, int], list[DecodeCase]] = {}
    for case in drawn_cases():
        of_heads.setdefault((case.heads, case.kv_heads), []).append(case)
    panels = [panel for cases in of_heads.values() if (panel := panel_of(results, cases, steps | baselines))]
    if not panels:
        return None
    measured = {label for panel in panels for label in panel["curves"]}
    return {
        "figure": NAME,
        "origin": results.origin(),
        "steps": [step for step, label in steps.items() if label in measured],
        "baselines": [label for label in baselines.values() if label in measured],
        "panels": panels,
    }


def draw_curve(axes: Axes, speeds: list[float | None], label: str, **look: object) -> list[End]:
    """Draws what there is. The label is at the last point, if that is within the axes."""
    points = [(x, speed) for x, speed in enumerate(speeds) if speed is not None]
    (line,) = axes.plot(*zip(*points, strict=True), **look)
    x, y = points[-1]
    return [End(x, y, label, line.get_color())] if y <= axes.get_ylim()[1] else []


def draw_panel(axes: Axes, panel: dict, found: dict, theme: Theme) -> None:
    axes.set_title(f"{panel['heads']} heads", fontweight="bold")
    axes.set_xlim(-0.3, len(panel["cases"]) - 0.7)
    names = [
        "\n".join([*case.split(" × "), f"{size:.1f}" if size < 10 else f"{size:.0f}"])
        for case, size in zip(panel["cases"], panel["megabytes"], strict=True)
    ]
    axes.set_xticks(range(len(names)), names, fontsize=style.SMALL)
    ends = []
    for name, dashes in (("read", (None, None)), ("empty", (1, 1.5))):
        ends += draw_curve(
            axes, panel["limits"][name], LIMITS[name], color=theme.text, linewidth=1.4, dashes=dashes, zorder=1.8
        )
    for label, speeds in panel["curves"].items():
        if label in found["baselines"]:
            dashes = style.BASELINE_DASHES[found["baselines"].index(label)]
            look = {"color": theme.baseline, "linewidth": 1.2, "marker": ".", "markersize": 4, "dashes": dashes}
        else:
            look = {**style.look_of(theme, f"step{label}"), "linewidth": 1.2}
        ends += draw_curve(axes, speeds, label, **look)
    label_ends(axes, ends)


def draw(found: dict, theme: Theme) -> Figure:
    panels = found["panels"]
    lines = -(-len(panels) // COLUMNS)
    tall = max(2.0, LINE * max(len(panel["curves"]) + len(LIMITS) for panel in panels))
    height = ABOVE + lines * tall + (lines - 1) * BETWEEN + BELOW
    figure = style.new_figure(
        height,
        f"How fast decode reads K and V: {style.steps_text(found['steps'])}",
        f"One query of each head, bf16, D = {HEAD_DIM}, TB/s of K and V; all in turns. {found['origin']}.\n"
        "Titles: query heads / key/value heads. Below: sequences, keys of each, MB of K and V.\n"
        "Black or white: a kernel that only reads as many bytes and, dotted, one that does nothing.\n"
        "Dashed: baselines.",
    )
    grid = figure.subplots(lines, COLUMNS, squeeze=False, sharey=True).ravel()
    figure.subplots_adjust(
        left=0.06, right=0.875, wspace=0.36, hspace=BETWEEN / tall, top=1 - ABOVE / height, bottom=BELOW / height
    )
    top = max(speed for panel in panels for speed in panel["limits"]["read"])
    grid[0].set_ylim(0, 1.06 * top)
    for axes, panel in zip(grid, panels, strict=False):
        draw_panel(axes, panel, found, theme)
    for axes in grid[len(panels) :]:
        axes.set_visible(False)
    for axes in grid[::COLUMNS]:
        axes.set_ylabel("TB/s")
    return figure
