"""The figures show the records, are drawn, and have labels that do not overlap."""

import itertools
import json
from functools import cache

import numpy as np
import pytest
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

from plots.figures import style
from plots.bench.decode import decode_cases
from plots.figures.all import BACKWARD, DECODE, FIGURES
from plots.figures.decode import DecodeResults
from plots.figures.labels import spread
from plots.figures.records import Results, load
from plots.figures.waterfall import speed_label
from tests.lib.kinds import MASK_STEPS, MMA_STEPS
from tests.lib.programs import REPOSITORY, read_records
from tests.lib.steps import chapters, every_step, source_of, step_names

H200 = REPOSITORY / "plots" / "results" / "h200"
GIVEN = ("committed", "alone", "backward", "decode")
LAST = MASK_STEPS[0]
TFLOPS, ROOFLINE = (
    [name for name in FIGURES if name.startswith(kind) and name not in BACKWARD] for kind in ("tflops", "roofline")
)
ORIGIN = {"device": "NVIDIA H200", "commit": "0123456789ab", "date": "2026-11-26T20:00:00Z", "right": True}
CEILINGS = {"ceiling_ffma_tflops": 65.0, "ceiling_mma_tflops": 640.0}


def decode_records() -> list[dict]:
    """Of a made-up GPU that starts a kernel in 3 us and reads 4.5 TB/s: each step is a little faster than the one
    before, and needs the tensor cores less than those that have none."""
    records = []
    for case in decode_cases():
        own = ORIGIN | CEILINGS | case.fields()
        own |= {"read_ms": 0.003 + own["cache_bytes"] / 4.5e9, "empty_ms": 0.003}
        rows = case.heads // case.kv_heads * case.seqlen
        names = step_names("decode")
        for i, name in enumerate(names):
            slower = 3 - 1.8 * i / len(names) + rows / (4 + i)
            records.append(own | {"step": name, "median_ms": own["read_ms"] * slower})
        if case.even():
            records.append(own | {"short": "cudnn", "median_ms": own["read_ms"] * 1.2})
    return records


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Results | DecodeResults]:
    """The committed records; one step alone, without baselines; those of backward steps; some of decode steps."""
    committed = load(H200)
    alone = [
        {name: value for name, value in record.items() if "flex" not in name}
        for record in committed.records
        if record.get("step") == LAST
    ]
    folder = tmp_path_factory.mktemp("decode")
    (folder / "bench_a.jsonl").write_text("".join(json.dumps(record) + "\n" for record in decode_records()))
    return {
        "committed": committed,
        "alone": Results(alone),
        "backward": load(H200.parent / "backward"),
        "decode": DecodeResults(folder),
    }


records_in = cache(read_records)


def records_of(**wanted: object) -> list[dict]:
    """The committed records with these values, found without the code under test."""
    paths = sorted(H200.glob("bench_*.jsonl"), key=lambda path: records_in(path)[0]["date"])
    for path in reversed(paths):
        found = [
            record
            for record in records_in(path)
            if "median_ms" in record and all(record.get(name) == value for name, value in wanted.items())
        ]
        if found:
            return found
    return []


# --- The data -------------------------------------------------------------------------------------


def test_waterfall_has_the_speeds_of_the_steps(given: dict) -> None:
    for panel in FIGURES["waterfall"].data(given["committed"])["panels"]:
        records = records_of(seqlen=4096, head_dim=128, dtype="fp16", mask=panel["mask"])
        expected = {record["step"]: record["tflops"] for record in records if "step" in record}
        expected = {step: speed for step, speed in expected.items() if not source_of(step).block_masks}
        assert {step["step"]: step["tflops"] for step in panel["steps"]} == expected
        assert [step["step"] for step in panel["steps"]] == sorted(expected)
        assert {step["after"] for step in panel["steps"]} - {None} <= set(expected)
    assert speed_label(None, 7.531) == "7.53"
    assert speed_label(100, 268.1) == "268\N{EM SPACE}×2.68"
    assert speed_label(200, 100) == "100\N{EM SPACE}×0.50 slower"


def test_tflops_has_every_step_and_baseline(given: dict) -> None:
    for panel in FIGURES[TFLOPS[0]].data(given["committed"])["panels"]:
        points = {tuple(point) for curve in panel["curves"] for point in curve["points"]}
        records = [
            record
            for seqlen in {seqlen for seqlen, _ in points}
            for record in records_of(seqlen=seqlen, head_dim=panel["head_dim"], mask=panel["mask"], dtype="fp16")
        ]
        assert points == {(record["seqlen"], record["tflops"]) for record in records}
        names = [curve["name"] for curve in panel["curves"]]
        steps = [name for name in names if name[0].isdigit()]
        assert steps == sorted(steps) and names[len(steps) :] == ["FA2", "FA3", "Flex", "cuDNN"]


def test_roofline_has_every_step_at_its_intensity(given: dict) -> None:
    data = FIGURES[ROOFLINE[0]].data(given["committed"])
    step = next(name for name in reversed(MMA_STEPS) if records_of(step=name))
    for point in data["steps"][step.removeprefix("step")]:
        # 4 N N D operations; Q, K, V and O of 2 N D bytes each and LSE of 4 N.
        assert point["intensity"] == pytest.approx(4 * point["n"] * 128 / (8 * 128 + 4), rel=1e-3)
        (record,) = records_of(step=step, seqlen=point["n"], head_dim=128, dtype="fp16", mask="full")
        assert point["tflops"] == record["tflops"]


def test_sparsity_has_times_over_the_full_mask(given: dict) -> None:
    data = FIGURES["sparsity"].data(given["committed"])
    assert len(data["panels"]) == 4 and data["blocks"] == [(128, 128)]
    for panel in data["panels"]:
        shape = {"step": data["step"], "head_dim": panel["head_dim"], "seqlen": panel["seqlen"], "dtype": "fp16"}
        assert panel["full_ms"] == records_of(**shape, mask="full")[0]["median_ms"]
        assert "blocks:0.5" in panel["masks"]
        for mask in panel["masks"]:
            (record,) = records_of(**shape, mask=mask)
            pairs = record["batch"] * record["heads"] * panel["seqlen"] ** 2
            masked = 1 - record["flops"] / (4 * panel["head_dim"] * pairs)
            time = 1 / record["speed_over_full"]
            assert panel["masks"][record["mask"]] == pytest.approx([masked, time])
            if "speed_over_flex" in record:
                assert panel["flex"][record["mask"]] == pytest.approx([masked, time * record["speed_over_flex"]])
            share = record["mask_blocks_active"] / record["mask_blocks"]
            sure = not (1 / record["speed_over_full_p90"] <= share <= 1 / record["speed_over_full_p10"])
            assert (record["mask"] in panel["per_block"]) == sure


def test_decode_has_the_speed_of_every_step_beside_the_limits(given: dict) -> None:
    data = FIGURES["decode"].data(given["decode"])
    assert [panel["heads"] for panel in data["panels"]] == ["32 / 8", "64 / 8", "32 / 32", "16 / 1"]
    assert data["steps"] == step_names("decode") and data["baselines"] == ["cuDNN"]
    for panel in data["panels"]:
        assert panel["megabytes"] == sorted(panel["megabytes"])
        for i, size in enumerate(panel["megabytes"]):
            read_ms = 0.003 + size / 4.5e3
            assert panel["limits"]["read"][i] == pytest.approx(size / read_ms * 1e-3)
            assert panel["limits"]["empty"][i] == pytest.approx(size / 0.003 * 1e-3)
            assert panel["curves"]["cuDNN"][i] == pytest.approx(panel["limits"]["read"][i] / 1.2)
    assert data["panels"][0]["cases"] == ["1 × 4096", "1 × 32768", "8 × 8192", "1 × 131072", "64 × 2048", "32 × 8192"]
    assert data["panels"][0]["megabytes"][0] == 4 * 4096 * 8 * 128 * 1e-6


def test_decode_roofline_counts_operations_for_each_byte(given: dict) -> None:
    data = FIGURES["decode_roofline"].data(given["decode"])
    assert list(data["steps"]) == [step.removeprefix("step") for step in step_names("decode")]
    for trail in data["steps"].values():
        assert [point["rows"] for point in trail] == [1, 4, 8, 16, 64]
        for point in trail:  # under the causal mask, early queries attend to a few keys less
            assert point["intensity"] == pytest.approx(point["rows"], rel=1e-2)
    first = data["steps"][step_names("decode")[0].removeprefix("step")][0]
    assert first["case"].startswith("D=128 32/32 B=64 ") and first["intensity"] == 1
    assert data["ceilings"]["ceiling_copy_gb_per_s"] == pytest.approx(4500, rel=1e-2)
    none = DecodeResults(REPOSITORY / "plots/results/real_input")
    assert all(FIGURES[name].data(none) is None for name in DECODE)


def test_wrong_failed_and_old_records_are_left_out(tmp_path) -> None:
    """Wrong and failed records are left out; those of the newest commit are used."""
    base = {"date": "2030-01-02", "step": "step98", "commit": "a", "device": "GPU"}
    old, new = tmp_path / "bench_a.jsonl", tmp_path / "bench_b.jsonl"
    old.write_text(json.dumps(base | {"median_ms": 1}) + "\n")
    new.write_text(
        "".join(
            json.dumps(base | {"date": "2031-01-02"} | more) + "\n"
            for more in ({"median_ms": 2, "right": True}, {"median_ms": 3, "right": False}, {"failed": "no memory"})
        )
    )
    results = load(tmp_path)
    assert [record["median_ms"] for record in results.records] == [2]
    assert results.origin() == "GPU, commit a, 2031-01-02"


# --- The drawing ----------------------------------------------------------------------------------


def seen_texts(figure: Figure) -> list[Text]:
    """All texts except tick labels beyond the ends of an axis."""
    unseen = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                if not axes.get_visible() or not low <= tick.get_loc() <= high:
                    unseen |= {tick.label1, tick.label2}
    return [
        text
        for text in figure.findobj(Text)
        if text.get_visible()
        and text not in unseen
        and text.get_text().strip()
        and (text.axes is None or text.axes.get_visible())
    ]


def corners_of(text: Text, renderer) -> np.ndarray:
    """The corners of the text's box, rotated with the text."""
    angle = text.get_rotation()
    text.set_rotation(0)
    box = Text.get_window_extent(text, renderer)
    text.set_rotation(angle)
    corners = np.array([[box.x0, box.y0], [box.x1, box.y0], [box.x1, box.y1], [box.x0, box.y1]])
    if angle:
        turned = Text.get_window_extent(text, renderer)
        middle = np.array([(turned.x0 + turned.x1) / 2, (turned.y0 + turned.y1) / 2])
        c, s = np.cos(np.radians(angle)), np.sin(np.radians(angle))
        corners = (corners - corners.mean(axis=0)) @ np.array([[c, s], [-s, c]]) + middle
    return corners


def overlap(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two rotated rectangles overlap: no axis of either separates them."""
    for corners in (one, other):
        for edge in np.diff(corners[:3], axis=0):
            normal = np.array([-edge[1], edge[0]])
            a, b = one @ normal, other @ normal
            if a.max() <= b.min() or b.max() <= a.min():
                return False
    return True


@pytest.mark.parametrize(
    "name, which",
    [
        (name, which)
        for name in FIGURES
        for which in GIVEN
        if (name in BACKWARD) == (which == "backward") and (name in DECODE) == (which == "decode")
    ],
)
def test_labels_are_on_the_canvas_and_apart(given: dict, name: str, which: str) -> None:
    data, theme = FIGURES[name].data(given[which]), style.THEMES[0]
    if data is None:  # nothing of this chapter, and nothing without a mask, was measured
        assert which == "alone" and name != "sparsity"
        return
    with rc_context(style.settings(theme)):
        figure = FIGURES[name].draw(data, theme)
        figure.set_dpi(100)  # pixels of a page
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        boxes = [(text.get_text(), corners_of(text, canvas.get_renderer())) for text in seen_texts(figure)]
        assert len(boxes) > 10
        assert [
            text for text, corners in boxes if not ((corners >= 0).all() and (corners <= figure.bbox.size).all())
        ] == []
        assert [(a, b) for (a, one), (b, other) in itertools.combinations(boxes, 2) if overlap(one, other)] == []
        assert [text for text, corners in boxes for axes in figure.axes if is_struck(corners, axes)] == []


def is_struck(corners: np.ndarray, axes: Axes) -> bool:
    """Whether a part of a curve is in the box. Beside the axes no curve is drawn."""
    if not overlap(corners, axes.bbox.corners()):
        return False
    curves = [line.get_transform().transform(line.get_xydata()) for line in axes.lines]
    return any(overlap(corners, np.array([a, b, a])) for curve in curves for a, b in itertools.pairwise(curve))


@pytest.mark.parametrize("theme", style.THEMES, ids=lambda theme: theme.name)
def test_no_two_steps_look_the_same(given: dict, theme: style.Theme) -> None:
    """No two have colour and marker in common, none of a chapter have one of them, and only the steps
    of its chapter have a colour in a figure."""
    looks = {step: style.look_of(theme, step) for step in every_step()}
    assert len({tuple(look.values()) for look in looks.values()}) == len(looks)
    figures = [(name, chapter, given["committed"], "fp16") for name, chapter in zip(TFLOPS, chapters(), strict=True)]
    figures += [
        (name, chapter, given["backward"], "bf16") for name, chapter in zip(BACKWARD, chapters("backward"), strict=True)
    ]
    for name, chapter, results, dtype in figures:
        for kind in ("color", "marker"):
            assert len({looks[step][kind] for step in chapter}) == len(chapter)
        with rc_context(style.settings(theme)):
            figure = FIGURES[name].draw(FIGURES[name].data(results), theme)
        colours = {line.get_color() for axes in figure.axes for line in axes.lines}
        measured = {looks[step]["color"] for step in chapter if results.select(step=step, dtype=dtype)}
        assert colours == measured | {theme.behind, theme.baseline}


def test_labels_are_spread_without_overlap() -> None:
    generator = np.random.default_rng(1)
    for count in (1, 2, 5, 12):
        wanted = list(generator.uniform(0, 100, count))
        places = spread(wanted, 7, 3, 97)
        assert min(places) >= 3 - 1e-9 and max(places) <= 97 + 1e-9
        assert (np.diff(np.array(places)[np.argsort(wanted)]) >= 7 - 1e-9).all()
    assert spread([10, 50, 90], 7, 0, 100) == [10, 50, 90]
    assert spread([50, 50, 1], 8, 0, 100) == [46, 54, 1]
