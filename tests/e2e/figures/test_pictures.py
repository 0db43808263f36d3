"""The pictures of the steps' pages: the committed files are what the generator writes, they can be
read on light and dark pages, and what they say is what the programs do."""

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ft2font import LoadFlags

from plots.figures import pictures_hardware, pictures_numbers, pictures_order, pictures_svg
from plots.figures.pictures import writers
from plots.figures.pictures_loops import PROBLEM, shape_of
from tests.lib.programs import REPOSITORY, STEP_DIR, Program, read_records, step_names
from tests.lib.source_tree import SourceTree

PICTURES = REPOSITORY / "docs" / "pictures"
NAMES = sorted([
    *(f"{step}_tiles" for step in step_names()), "fragment_a", "fragment_b", "fragment_c",
    "banks_plain", "banks_padded", "banks_swizzled", "grid_to_lane", "coalescing",
    "pipeline_step03", "pipeline_step04", "pipeline_step06", "mask_blocks", "mask_window",
    "mask_document", "mask_prefix", "online_softmax", "error_right", "error_broken"])
GROUPS = [name for name in writers(Path(), Path()) if name != "errors"]
SVG = "{http://www.w3.org/2000/svg}"
SIZES, NORMAL = {"small": 12, "large": 15, "huge": 44}, 13  # of text, by class
MOST_BYTES, MOST_WIDTH, LEAST_TEXT, LEAST_CONTRAST = 60_000, 900, 12, 4.5

cpu_only = pytest.mark.cpu_only("the pictures show the programs of the CPU backend")


# --- The files are up to date ---------------------------------------------------------------------

def compare(directory: Path) -> list[str]:
    """The names of the pictures in the directory; they must equal the committed ones."""
    written = sorted(directory.glob("*.svg"))
    outdated = [path.name for path in written
                if not (PICTURES / path.name).exists()
                or (PICTURES / path.name).read_bytes() != path.read_bytes()]
    assert outdated == [], "docs/pictures is out of date: make pictures"
    return [path.stem for path in written]


@cpu_only
def test_committed_pictures_are_up_to_date(tmp_path: Path) -> None:
    for group in GROUPS:
        writers(STEP_DIR, Path())[group](tmp_path)
    assert compare(tmp_path) == [name for name in NAMES if not name.startswith("error_")]


@cpu_only
def test_committed_maps_of_errors_are_up_to_date(tmp_path: Path) -> None:
    """The map of the broken step needs a build, of a few seconds."""
    tree = SourceTree(tmp_path, built="cpu")
    done = tree.make("build/pictures/step02_broken", "BACKEND=cpu", f"PYTHON={sys.executable}")
    assert done.returncode == 0, done.stderr
    writers(STEP_DIR, tree.root / "build" / "pictures" / "step02_broken")["errors"](tmp_path)
    assert compare(tmp_path) == ["error_broken", "error_right"]


def test_a_source_without_the_rescaling_is_refused() -> None:
    text = next((REPOSITORY / "steps").glob("step02_*.cu")).read_text()
    old, new = pictures_numbers.REMOVED
    assert pictures_numbers.broken_source(text) == text.replace(old, new) != text
    for wrong in (text.replace(old, new), text + old):
        with pytest.raises(ValueError, match="step02 must hold once"):
            pictures_numbers.broken_source(wrong)


# --- The files can be read ------------------------------------------------------------------------

@pytest.fixture(params=NAMES)
def svg(request: pytest.FixtureRequest) -> ElementTree.Element:
    return ElementTree.parse(PICTURES / f"{request.param}.svg").getroot()


def text_of(root: ElementTree.Element, tag: str) -> str:
    return root.findtext(f"{SVG}{tag}") or ""


def size_of(root: ElementTree.Element) -> tuple[float, float]:
    left, top, width, height = map(float, root.get("viewBox").split())
    assert (left, top) == (0, 0)
    return width, height


@pytest.mark.parametrize("name", NAMES)
def test_files_are_small_and_need_no_others(name: str) -> None:
    text = (PICTURES / f"{name}.svg").read_text()
    assert len(text.encode()) <= MOST_BYTES
    links = re.findall(r'(?:href|src)=|@import|@font-face|<image|<script|url\((?!#)', text)
    assert links == []
    assert re.findall(r"https?://[^\"]*", text) == ["http://www.w3.org/2000/svg"]
    defined = set(re.findall(r'<(?:pattern|marker) id="(\w+)"', text))
    assert set(re.findall(r"url\(#(\w+)\)", text)) == defined


def test_every_picture_is_described_and_fits_a_page(svg: ElementTree.Element) -> None:
    assert text_of(svg, "title") and len(text_of(svg, "desc")) > 60
    assert svg.get("aria-labelledby") == "title description"
    width, height = size_of(svg)
    assert width <= MOST_WIDTH and (svg.get("width"), svg.get("height")) == tuple(
        svg.get("viewBox").split()[2:])
    # Transparent: nothing covers the picture.
    for rect in svg.iter(f"{SVG}rect"):
        if "none" not in rect.get("class", "").split():
            assert (float(rect.get("width")) < 0.9 * width
                    or float(rect.get("height")) < 0.9 * height)


def test_text_is_large_enough(svg: ElementTree.Element) -> None:
    sizes = re.findall(r"font(?:-size)?:(?:[a-z]+ )?([\d.]+)px", text_of(svg, "style"))
    assert sizes and min(map(float, sizes)) >= LEAST_TEXT
    for text in svg.iter(f"{SVG}text"):
        assert not {"font-size", "style"} & set(text.keys())
        assert "scale" not in text.get("transform", "")
    for group in svg.iter(f"{SVG}g"):  # which could make text smaller
        assert group.find(f".//{SVG}text") is None


def test_there_are_colours_for_both_schemes(svg: ElementTree.Element) -> None:
    """Every rule with a colour has another one in the dark scheme."""
    light, _, dark = text_of(svg, "style").partition("@media (prefers-color-scheme: dark){")
    rule = re.compile(r"([.\w-]+)\{[^{}]*(?:fill|stroke):#")
    assert dark and set(rule.findall(light)) <= set(rule.findall(dark))
    coloured = [element for element in svg.iter() if set(element.keys()) & {"fill", "stroke"}
                and not element.get("fill", "").startswith("url(#")]
    assert coloured == []
    used = {name for element in svg.iter() for name in element.get("class", "").split()}
    styled = set(re.findall(r"\.(\w+)\{", text_of(svg, "style")))
    assert used - {"now"} - {f"now{i}" for i in range(4)} <= styled


def luminance(colour: str) -> float:
    channels = (int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5))
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", [0, 1], ids=["light", "dark"])
def test_contrast_of_text(scheme: int) -> None:
    for colours in pictures_svg.TEXT.values():
        assert contrast(colours[scheme], pictures_svg.BACKGROUND[scheme]) >= LEAST_CONTRAST
    for fill in pictures_svg.FILLS.values():
        assert contrast(pictures_svg.TEXT["ink"][scheme], fill[scheme]) >= LEAST_CONTRAST


def boxes_of_texts(root: ElementTree.Element) -> list[tuple[str, np.ndarray]]:
    """Left, top, right and bottom of each text that is not turned and visible without motion, in
    DejaVu Sans, which is the widest of the fonts."""
    boxes = []
    for text in root.iter(f"{SVG}text"):
        look = text.get("class", "").split()
        if text.get("transform") or ("now" in look and "now3" not in look):
            continue
        size = next((size for name, size in SIZES.items() if name in look), NORMAL)
        bold = {"bold", "large", "huge"} & set(look)
        font = get_font(findfont(FontProperties(family="DejaVu Sans",
                                                weight="bold" if bold else "normal")))
        font.set_size(size, 72)
        font.set_text(text.text, 0, flags=LoadFlags.NO_HINTING)
        (width, height), below = (n / 64 for n in font.get_width_height()), font.get_descent() / 64
        x, y = float(text.get("x")), float(text.get("y"))
        x -= {"middle": 0.5, "end": 1}.get(text.get("text-anchor"), 0) * width
        boxes.append((text.text, np.array([x, y + below - height, x + width, y + below])))
    return boxes


def test_texts_are_inside_and_apart(svg: ElementTree.Element) -> None:
    boxes = boxes_of_texts(svg)
    width, height = size_of(svg)
    corners = np.array([box for _, box in boxes])
    outside = [text for text, box in boxes
               if (box[:2] < 0).any() or box[2] > width or box[3] > height]
    assert outside == []
    lows, highs = corners[:, :2], corners[:, 2:]
    both = (np.minimum(highs[:, None], highs) - np.maximum(lows[:, None], lows) > 0).all(axis=2)
    pairs = [(boxes[i][0], boxes[j][0]) for i, j in np.argwhere(np.triu(both, 1))]
    assert pairs == []


def test_motion_stops_where_the_reader_wants_none() -> None:
    style = text_of(ElementTree.parse(PICTURES / "online_softmax.svg").getroot(), "style")
    still, _, moving = style.partition("@media (prefers-reduced-motion: no-preference){")
    assert "animation" not in still and moving.count("@keyframes") == 4
    assert ".now{opacity:0}.now3{opacity:1}" in still  # the last state is the still image


# --- What they say --------------------------------------------------------------------------------

def test_banks_and_wavefronts() -> None:
    offsets = {kind: pictures_hardware.chunk_offsets(kind)
               for kind in ("plain", "padded", "swizzled")}
    for r, c in np.ndindex(8, 8):
        assert offsets["plain"][r, c] == 128 * r + 16 * c
        assert offsets["padded"][r, c] == 144 * r + 16 * c
        assert offsets["swizzled"][r, c] == 128 * r + 16 * (c ^ r)
    assert [max(pictures_hardware.reads_of(of)) for of in offsets.values()] == [8, 1, 1]


def test_sectors() -> None:
    assert [pictures_hardware.sectors_of(stride) for stride in (1, 2, 8, 32)] == [4, 8, 32, 32]


@cpu_only
@pytest.mark.parametrize("step", pictures_order.CHARTS)
def test_overlap_is_what_the_backend_counts(step: str, tmp_path: Path) -> None:
    """With as many keys as the chart has tiles, the same share of the mma has a copy in flight."""
    program = Program(step)
    chart = pictures_order.chart_of(step, program.path)
    keys = pictures_order.TILES * shape_of(program.path).block_n
    program.run_right(*PROBLEM, "--seqlen-kv", keys, "--json", tmp_path / "record.json")
    (record,) = read_records(tmp_path / "record.json")
    assert chart.in_flight() / (2 * pictures_order.TILES) == pytest.approx(
        record["count_mma_under_copy"] / record["count_mma"])
    barriers = sum(mark == "b" for _, mark in chart.marks)
    assert barriers * record["kernel1_blocks"] == record["count_barriers"]


def test_the_online_softmax_ends_with_the_softmax() -> None:
    last = pictures_numbers.states()[-1]
    probs = np.exp2(pictures_numbers.SCORES)
    assert last.o / last.l == pytest.approx((probs * pictures_numbers.VALUES).sum() / probs.sum())
    assert last.m + np.log2(last.l) == pytest.approx(np.log2(probs.sum()))


def test_outlines_enclose_the_true_entries() -> None:
    """Filling an outline by its winding numbers gives the entries back."""
    rng = np.random.default_rng(3)
    for _ in range(100):
        entries = rng.random(rng.integers(1, 9, 2)) < 0.5
        winding = np.zeros((entries.shape[0], entries.shape[1] + 1), int)
        x = y = first = 0
        for letter, a, b in re.findall(r"([Mhvz])(-?\d*) ?(\d*)", pictures_svg.outline(entries)):
            if letter == "M":
                x, y = int(a), int(b)
                first = y
            elif letter == "h":
                x += int(a)
            else:
                end = first if letter == "z" else y + int(a)
                winding[min(y, end):max(y, end), x] += 1 if end > y else -1
                y = end
        assert ((np.cumsum(winding, axis=1)[:, :-1] != 0) == entries).all()
