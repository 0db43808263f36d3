"""The figures can be read: labels apart and large enough, colours that all can tell apart, ink."""

import contextlib
import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from tests.e2e.figures import colours
from tests.e2e.figures.drawing import GIVEN, NAMES, figures, measured, rows_given

matplotlib = pytest.importorskip("matplotlib")
import style
from labels import spread
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text

PAGE_WIDTH = 800  # pixels, as GitHub shows a picture


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, measured.Results]:
    return rows_given(tmp_path_factory.mktemp("given"))


@contextlib.contextmanager
def figure_of(name: str, results: measured.Results, theme: style.Theme,
              dpi: int = 100) -> Iterator[tuple[Figure, FigureCanvasAgg]]:
    """The drawn figure with its renderer, in pixels of a page."""
    module = figures.FIGURES[name]
    with matplotlib.rc_context(style.settings(theme)):
        figure = module.draw(module.data(results), theme)
        figure.set_dpi(dpi)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        yield figure, canvas


def seen_texts(figure: Figure) -> list[Text]:
    """All but the labels of ticks beyond the ends of an axis."""
    hidden = set()
    for axes in figure.axes:
        for axis in (axes.xaxis, axes.yaxis):
            low, high = sorted(axis.get_view_interval())
            for tick in axis.get_major_ticks() + axis.get_minor_ticks():
                if not axes.get_visible() or not low <= tick.get_loc() <= high:
                    hidden |= {tick.label1, tick.label2}
    return [text for text in figure.findobj(Text) if text.get_visible() and text not in hidden
            and text.get_text().strip() and (text.axes is None or text.axes.get_visible())]


def boxes_of(figure: Figure, canvas: FigureCanvasAgg) -> list[tuple[str, np.ndarray]]:
    """Each text with the four corners of its box, which is turned as the text is."""
    renderer = canvas.get_renderer()
    boxes = []
    for text in seen_texts(figure):
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
        boxes.append((text.get_text(), corners))
    return boxes


def overlap(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two rectangles, each turned as it may be, meet: no axis of theirs parts them."""
    for corners in (one, other):
        for edge in np.diff(corners[:3], axis=0):
            normal = np.array([-edge[1], edge[0]])
            a, b = one @ normal, other @ normal
            if a.max() <= b.min() or b.max() <= a.min():
                return False
    return True


# --- Labels ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("which", GIVEN)
@pytest.mark.parametrize("name", NAMES)
def test_labels_are_on_the_canvas_and_apart(given: dict, which: str, name: str) -> None:
    with figure_of(name, given[which], style.THEMES[0]) as (figure, canvas):
        width, height = figure.bbox.size
        boxes = boxes_of(figure, canvas)
        assert len(boxes) > 12
        outside = [text for text, corners in boxes if not (
            (corners >= 0).all() and (corners <= [width, height]).all())]
        assert outside == []
        assert [(a, b) for (a, one), (b, other) in itertools.combinations(boxes, 2)
                if overlap(one, other)] == []


def test_overlaps_are_found() -> None:
    """The judge of the test above, at rest and turned."""
    square = np.array([[0, 0], [2, 0], [2, 2], [0, 2]], float)
    assert overlap(square, square + 1.5) and not overlap(square, square + [2.5, 0])
    diamond = np.array([[0, -1], [1, 0], [0, 1], [-1, 0]], float)
    assert not overlap(square, diamond - [0.6, 0.6]) and overlap(square, diamond - [0.4, 0.4])


@pytest.mark.parametrize("name", NAMES)
def test_labels_can_be_read(given: dict, name: str) -> None:
    """As wide as a page shows them, no letter is set in less than 11 pixels."""
    with figure_of(name, given["whole"], style.THEMES[0]) as (figure, _):
        pixels_a_point = PAGE_WIDTH / (72 * figure.get_figwidth())
        assert min(text.get_fontsize() for text in seen_texts(figure)) * pixels_a_point >= 11


@pytest.mark.parametrize("which", GIVEN)
def test_every_curve_has_its_name_at_its_end(given: dict, which: str) -> None:
    with figure_of("tflops", given[which], style.THEMES[0]) as (figure, _):
        data = figures.FIGURES["tflops"].data(given[which])
        assert figure.findobj(matplotlib.legend.Legend) == []
        for axes, panel in zip(figure.axes, data["panels"], strict=False):
            ends = {text.get_text(): text.xy for text in axes.texts}
            assert list(ends) == [curve["name"] for curve in panel["curves"]]
            for curve in panel["curves"]:
                assert list(ends[curve["name"]]) == max(curve["beside"] + curve["alone"])


def drawn_lines(axes) -> list[list[list[float]]]:
    """The points of each line."""
    return [np.asarray(line.get_xydata()).tolist() for line in axes.lines]


@pytest.mark.parametrize("which", GIVEN)
def test_tflops_draws_its_data(given: dict, which: str) -> None:
    data = figures.FIGURES["tflops"].data(given[which])
    with figure_of("tflops", given[which], style.THEMES[0]) as (figure, _):
        for axes, panel in zip(figure.axes, data["panels"], strict=False):
            assert drawn_lines(axes) == [curve[kind] for curve in panel["curves"]
                                         for kind in ("beside", "alone") if curve[kind]]


@pytest.mark.parametrize("which", GIVEN)
def test_roofline_draws_its_data(given: dict, which: str) -> None:
    """Beside the ceilings, which are horizontal or one sloping line."""
    data = figures.FIGURES["roofline"].data(given[which])
    with figure_of("roofline", given[which], style.THEMES[0]) as (figure, _):
        lines = drawn_lines(figure.axes[0])
        slope, *roofs = lines[:1 + sum("tflops" in name for name in data["ceilings"])]
        copy = data["ceilings"]["ceiling_copy_gb_per_s"] * 1e-3
        assert all(y == pytest.approx(copy * x) for x, y in slope)
        assert sorted({y for roof in roofs for _, y in roof}) == sorted(
            speed for name, speed in data["ceilings"].items() if "tflops" in name)
        for trail in data["steps"].values():
            assert [[point["intensity"], point["tflops"]] for point in trail] in lines


@pytest.mark.parametrize("which", GIVEN)
def test_sparsity_draws_its_data(given: dict, which: str) -> None:
    """Random blocks in one line, every other mask, FlexAttention; labels where they belong, and
    those beyond the aim stand out."""
    data = figures.FIGURES["sparsity"].data(given[which])
    with figure_of("sparsity", given[which], style.THEMES[0]) as (figure, _):
        for axes, panel in zip(figure.axes, data["panels"], strict=False):
            lines = drawn_lines(axes)
            blocks = sorted(point for mask, point in panel["masks"].items() if "blocks" in mask)
            others = {mask: point for mask, point in panel["masks"].items() if "blocks" not in mask}
            assert [[0, 1], [1, 0]] in lines and blocks in lines
            for point in (*others.values(), *panel["flex"].values()):
                assert [point] in lines
            labels = {text.get_text().split()[0]: text for text in axes.texts}
            for mask, point in (*others.items(), ("blocks:0.1", blocks[-1])):
                assert list(labels[mask].xy) == point
                assert (labels[mask].get_fontweight() == "bold") == (
                    panel["per_block"].get(mask, 1) > 1.25)


@pytest.mark.parametrize("which", GIVEN)
def test_waterfall_draws_its_data(given: dict, which: str) -> None:
    """Bars from the speed before to that of the step."""
    data = figures.FIGURES["waterfall"].data(given[which])
    with figure_of("waterfall", given[which], style.THEMES[0]) as (figure, _):
        for axes, panel in zip(figure.axes, data["panels"], strict=True):
            speeds = [step["tflops"] for step in panel["steps"]]
            bars = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
            assert bars == [pytest.approx(pair) for pair in
                            zip([axes.get_xlim()[0], *speeds], speeds)]


def test_places_of_labels() -> None:
    generator = np.random.default_rng(1)
    for count in (1, 2, 5, 12):
        for _ in range(50):
            wanted = list(generator.uniform(0, 100, count).round(generator.integers(0, 3)))
            places = spread(wanted, 7, 3, 97)
            order = np.argsort(wanted, kind="stable")
            assert min(places) >= 3 - 1e-9 and max(places) <= 97 + 1e-9
            assert (np.diff(np.array(places)[order]) >= 7 - 1e-9).all()
    assert spread([10, 50, 90], 7, 0, 100) == [10, 50, 90]
    assert spread([50, 50], 8, 0, 100) == [46, 54]
    assert spread([50, 50, 1], 8, 0, 100) == [46, 54, 1]


# --- Colours and ink ------------------------------------------------------------------------------

@pytest.mark.parametrize("theme", style.THEMES, ids=lambda theme: theme.name)
def test_colours_stand_out(theme: style.Theme) -> None:
    """As WCAG 2 wants it of text."""
    for colour in (theme.text, theme.muted, theme.peer, theme.gain, theme.loss, *theme.steps):
        assert colours.contrast(colour, theme.background) >= 4.5


@pytest.mark.parametrize("eyes", [None, *colours.COLOUR_BLIND])
@pytest.mark.parametrize("theme", style.THEMES, ids=lambda theme: theme.name)
def test_colours_differ_to_all_eyes(theme: style.Theme, eyes: str | None) -> None:
    for one, other in itertools.combinations(theme.steps, 2):
        assert colours.distance(one, other, eyes) >= 20, (one, other)
    assert colours.distance(theme.gain, theme.loss, eyes) >= 20


def test_measures_of_colours() -> None:
    """White on black, and red beside green, which some take for one."""
    assert colours.contrast("#ffffff", "#000000") == pytest.approx(21)
    assert colours.contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert colours.distance("#a05000", "#607000", "deuteranopia") < 12
    assert colours.distance("#a05000", "#607000", None) > 40


def test_steps_differ_by_marker_too() -> None:
    looks = {(style.step_colour(style.THEMES[0], i), style.step_marker(i)) for i in range(42)}
    assert len(looks) == 42
    assert all(style.step_marker(i) != style.step_marker(i + 1) for i in range(42))


@pytest.mark.parametrize("theme", style.THEMES, ids=lambda theme: theme.name)
@pytest.mark.parametrize("name", NAMES)
def test_figures_are_not_blank(given: dict, name: str, theme: style.Theme) -> None:
    """Coloured ink in every panel, on the ground of the theme."""
    with figure_of(name, given["whole"], theme, style.PNG_DPI) as (figure, canvas):
        pixels = np.asarray(canvas.buffer_rgba())[..., :3]
        ground = np.round(255 * np.array(matplotlib.colors.to_rgb(theme.background))).astype(int)
        assert pixels.shape[1] == 2 * PAGE_WIDTH and (pixels[0, 0] == ground).all()
        found, counts = np.unique(pixels.astype(int) @ [1 << 16, 1 << 8, 1], return_counts=True)
        assert len(found) > 100 and 0.01 < 1 - counts.max() / counts.sum() < 0.4
        for axes in figure.axes:
            if axes.get_visible():
                box = axes.bbox
                inside = pixels[int(len(pixels) - box.y1):int(len(pixels) - box.y0),
                                int(box.x0):int(box.x1)].astype(int)
                spread_of = inside.max(axis=2) - inside.min(axis=2)
                coloured = np.abs(spread_of - (ground.max() - ground.min())) > 40
                assert coloured.mean() > 0.001, axes.get_title("left")


