"""The explorers of fragments and banks, as a browser shows them from file://.

Their texts are compared with what an H200 printed (tests/data/layouts_h200.txt) and with the lab's
counts of the steps.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright import sync_api

from plots.tools import layouts
from tests.docs.browser import SCHEMES, SITE, WIDTHS
from tests.lib.programs import REPOSITORY, Program, read_records
from tests.lib.source_tree import SourceTree

SOURCES = REPOSITORY / "docs/explorers"
PAGES = ("fragments.html", "banks.html")
MOST_CODE_BYTES, MOST_START_MS, LEAST_CONTRAST = 40_000, 1000, 4.5
HALVES = {"lo": "lower half", "hi": "upper half"}


@pytest.fixture(scope="module")
def built() -> Path:
    """The folder of the pages."""
    return SITE / "explorers"


@pytest.fixture(scope="module")
def browser() -> Iterator["sync_api.Browser"]:
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=shutil.which("chromium"),
                                             args=["--no-sandbox"])
        yield started
        started.close()


class Explorer:
    """A page that is open, and the errors that it reports."""

    def __init__(self, browser: "sync_api.Browser", built: Path, width: int = 1280,
                 scheme: str = "light") -> None:
        self.built, self.errors = built, []
        self.page = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
        self.page.on("console", lambda said: self.errors.append(said.text))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("request", lambda request: request.url.startswith("file:")
                     or self.errors.append(f"from the network: {request.url}"))

    def open(self, address: str) -> None:
        self.page.goto("about:blank")
        self.page.goto(f"{self.built.as_uri()}/{address}")
        self.page.wait_for_selector("svg:last-of-type .current", state="attached")

    def text(self, name: str) -> str:
        return self.page.inner_text(f"#{name}")

    def hover(self, svg: str, index: int) -> str:
        self.page.hover(f"#{svg} [data-index='{index}']")
        return self.text("answer")

    def press(self, *keys: str) -> str:
        for key in keys:
            self.page.keyboard.press(key)
        return self.text("answer")


@pytest.fixture
def explorer(browser: "sync_api.Browser", built: Path) -> Iterator[Explorer]:
    opened = Explorer(browser, built)
    yield opened
    opened.page.close()
    assert opened.errors == []


# --- Fragments -----------------------------------------------------------------------------------

def expected_texts(name: str) -> dict[str, tuple[int, str]]:
    """Of each entry, by its name on the page: the lane and the words for its register."""
    table = layouts.read_table(REPOSITORY / "tests/data/layouts_h200.txt")
    operands = {"mma.a": ("A", layouts.a_cells), "mma.b": ("B", layouts.b_cells),
                "mma.cd": ("C", layouts.accumulator_cells)}
    if name in operands:
        letter, cells_of = operands[name]
        named = {letter: cells_of(table)}
    else:
        named = {f"M{i}": cells for i, cells in enumerate(layouts.matrix_cells(table, name))}
    texts = {}
    for letter, cells in named.items():
        for (row, column), (lane, holder) in cells.items():
            register, _, half = holder.partition(".")
            if name in operands:
                register = register.replace("r", letter.lower())
            words = f"register {register}, {HALVES.get(half, 'all 32 bits')}"
            texts[f"{letter}[{row}][{column}]"] = lane, words
    return texts


VIEWS = ["mma.a", "mma.b", "mma.cd",
         *(f"ldmatrix.x{count}{form}" for form in ("", ".trans") for count in (1, 2, 4))]

# Goes through all entries with the arrow keys, in one picture, and collects the texts.
WALK = """id => {
  const svg = document.getElementById(id), answer = document.getElementById('answer');
  const press = key => {
    const before = answer.textContent;
    svg.dispatchEvent(new KeyboardEvent('keydown', { key, cancelable: true }));
    return answer.textContent !== before;
  };
  const texts = [];
  press('PageUp');
  do {
    press('Home');
    do texts.push(answer.textContent); while (press('ArrowRight'));
  } while (press('ArrowDown'));
  return texts;
}"""


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("picture", ["matrix", "lanes"])
def test_every_entry_is_where_the_gpu_has_it(explorer: Explorer, name: str, picture: str) -> None:
    explorer.open(f"fragments.html#{name}")
    found = {}
    for text in explorer.page.evaluate(WALK, picture):
        entry, lane, words = re.match(r"(\S+) is in lane (\d+), (.*?)\.", text).groups()
        found[entry] = int(lane), words
    assert found == expected_texts(name)


def test_pointing_at_an_entry_or_a_register(explorer: Explorer) -> None:
    explorer.open("fragments.html")
    assert explorer.hover("matrix", 3 * 16 + 6) == "A[3][6] is in lane 15, register a0, lower half."
    assert explorer.hover("matrix", 9 * 16 + 3) == "A[9][3] is in lane 5, register a1, upper half."
    # Lane 28, the last half register.
    assert explorer.hover("lanes", 28 * 8 + 7) == "A[15][9] is in lane 28, register a3, upper half."
    explorer.page.select_option("#instruction", "mma.cd")
    assert explorer.hover("matrix", 9 * 8 + 2) == (
        "C[9][2] is in lane 5, register c2, all 32 bits. D has the same layout as C.")
    explorer.page.select_option("#instruction", "ldmatrix.x4.trans")
    assert explorer.hover("matrix", 64 * 2 + 8 * 3 + 5) == (
        "M2[3][5] is in lane 21, register r2, upper half. "
        "Lane 19 passes the address of row 3 of M2.")


def test_both_pictures_outline_the_entry(explorer: Explorer) -> None:
    explorer.open("fragments.html#mma.b")
    explorer.hover("lanes", 4 * 7)
    for name in ("matrix", "lanes"):
        marks = [explorer.page.locator(f"#{name} .mark.{kind}").count()
                 for kind in ("current", "register", "lane")]
        assert marks == [1, 1, 2]


def test_keyboard_alone(explorer: Explorer) -> None:
    """From the start of the page: the select, the matrix, the lanes."""
    explorer.open("fragments.html")
    explorer.press("Tab", "ArrowDown")
    assert explorer.text("answer").startswith("B[3][6] ")
    assert explorer.page.url.endswith("#mma.b")
    explorer.press("Tab", "ArrowDown", "ArrowRight")
    assert explorer.text("answer") == "B[4][7] is in lane 30, register b0, lower half."
    outline = "getComputedStyle(document.activeElement).outlineStyle"
    assert explorer.page.evaluate(outline) == "solid"
    explorer.press("Tab", "ArrowRight", "ArrowUp")
    assert explorer.text("answer") == "B[3][7] is in lane 29, register b0, upper half."
    assert explorer.page.evaluate(outline) == "solid"


# --- Banks ---------------------------------------------------------------------------------------

def counts_of(explorer: Explorer, address: str) -> tuple[int, int]:
    """The wavefronts and the ideal that the page names."""
    explorer.open(f"banks.html#{address}")
    words = re.search(r"(\d+) wavefronts?, ideal (\d+)", explorer.text("counts"))
    return int(words[1]), int(words[2])


def counted_by_lab(program: Program, scratch: Path, dim: int, place: str, kind: str) -> tuple:
    """Wavefronts and the ideal of a request at a line of source. All its requests are alike."""
    path = scratch / f"{program.name}_{dim}_{place.replace('/', '_')}.jsonl"
    program.run("-b", 1, "-H", 1, "-n", 128, "-d", dim, f"--report=json:{path},banks",
                "--repeat", 0, "--check", "none", cwd=program.directory.parents[1])
    (line,) = (record for record in read_records(path) if record["record"] == "line"
               and record["kernel"].startswith(("attention_kernel", "pair_kernel"))
               and f"{record['file']}:{record['line']}" == place)
    requests, wavefronts, conflicts = (line[f"{kind}_{field}"]
                                       for field in ("requests", "wavefronts", "conflicts"))
    return wavefronts / requests, (wavefronts - conflicts) / requests


@pytest.mark.parametrize("step, dim, access, kind", [
    ("02b", 64, "k_stores", "shared_store"), ("02b", 32, "k_stores", "shared_store"),
    ("02b", 128, "v_loads", "shared_load"), ("02c", 64, "k_ldmatrix", "ldmatrix"),
    ("03", 96, "q_ldmatrix", "ldmatrix"), ("03", 64, "o_stores", "shared_store"),
    ("04", 128, "v_ldmatrix", "ldmatrix"), ("05", 32, "o_loads", "shared_load"),
    ("06", 64, "k_ldmatrix", "ldmatrix"), ("06", 128, "o_stores", "shared_store"),
    ("06", 256, "v_ldmatrix", "ldmatrix")])
def test_counts_are_those_of_the_lab(explorer: Explorer, tmp_path: Path, step: str, dim: int,
                                     access: str, kind: str) -> None:
    counts = counts_of(explorer, f"{step},{dim},{access},own")
    place = explorer.text("source").split()[0]
    assert counts == counted_by_lab(Program(f"step{step}"), tmp_path, dim, place, kind)


@pytest.mark.parametrize("step, change", [
    ("02c", ("common/device/fragments.cuh", "SMEM_STRIDE = HEAD_DIM + CHUNK",
             "SMEM_STRIDE = HEAD_DIM")),
    pytest.param("06", ("steps/step06_tuned.cu", "(chunk ^ place)", "(place * 0 + chunk)"),
                 marks=pytest.mark.exhaustive)])
def test_counts_without_padding(explorer: Explorer, tmp_path: Path, step: str,
                                change: tuple) -> None:
    """The step itself, changed, has the conflicts that the explorer shows."""
    tree = SourceTree(tmp_path, built="cpu")
    tree.replace(*change)
    tree.compile_only(f"step{step}", "CONFIG<__half, 64>" if step == "02c" else
                      "CONFIG<__half, 64, true>")
    done = tree.make("BACKEND=cpu", f"build/cpu/step{step}")
    assert done.returncode == 0, done.stderr
    program = Program(f"step{step}", tree.root / "build/cpu")
    for access, kind in (("q_ldmatrix", "ldmatrix"), ("o_stores", "shared_store")):
        counts = counts_of(explorer, f"{step},64,{access},unpadded")
        place = explorer.text("source").split()[0]
        assert counts == counted_by_lab(program, tmp_path, 64, place, kind)


# For each access in each layout: what the data says, and what is drawn.
DRAW_ALL = """() => BANKS.accesses.flatMap(own => LAYOUTS.map((name, number) => {
  writeAddress([own.step, own.dim, own.access, name]);
  showAddress();
  const svg = document.getElementById('banks');
  const lanes = [...svg.querySelectorAll('[data-index]')].map(cell => Number(cell.dataset.index));
  const labels = [...svg.querySelectorAll('text')].map(text => text.textContent);
  return { name: location.hash, said: own.layouts[number].wavefronts,
           ideal: own.layouts[number].ideal, drawn: svg.querySelectorAll('.border').length,
           plus: labels.filter(label => label.endsWith('+')).length,
           hatched: svg.querySelectorAll('.hatch').length > 0,
           lanes: lanes.sort((a, b) => a - b).join() };
}))"""


def test_all_wavefronts_and_lanes_are_drawn(explorer: Explorer) -> None:
    explorer.open("banks.html")
    drawings = explorer.page.evaluate(DRAW_ALL)
    all_lanes = ",".join(map(str, range(32)))
    assert len(drawings) == 3 * 5 * (4 + 5 * 6)  # layouts, head dimensions, accesses of all steps
    for drawing in drawings:
        conflicts = drawing["said"] - drawing["ideal"]
        assert drawing["drawn"] == drawing["said"], drawing
        assert drawing["plus"] == conflicts and drawing["hatched"] == (conflicts > 0), drawing
        assert drawing["lanes"] == all_lanes, drawing


def test_lanes_of_a_tile(explorer: Explorer) -> None:
    """The offsets are those that docs/lab.md shows for the same access."""
    explorer.open("banks.html#03,64,k_ldmatrix,own")
    drawn = re.search(r"access     ldmatrix at .*?offset +([\d ]+)\n *bank +([\d ]+)\n",
                      (REPOSITORY / "docs/lab.md").read_text(), re.DOTALL)
    offsets, banks = (list(map(int, numbers.split())) for numbers in drawn.groups())
    for lane, (offset, bank) in enumerate(zip(offsets, banks, strict=True)):
        assert explorer.hover("banks", lane) == (
            f"Lane {lane}: row {lane}, columns 0 to 7 of K, at byte {144 * lane} of the tile "
            f"(byte {offset} of shared memory), banks {bank} to {bank + 3}, wavefront 1 of 4.")


def test_banks_by_keyboard(explorer: Explorer) -> None:
    explorer.open("banks.html")
    explorer.press("Tab", "ArrowDown", "Tab", "Tab", "ArrowDown", "Tab", "ArrowDown", "ArrowDown")
    assert explorer.page.url.endswith("#04,64,q_ldmatrix,padded")
    assert explorer.press("Tab", "ArrowRight", "ArrowDown").startswith("Lane 9: row 9, ")
    assert explorer.press("End").startswith("Lane 31: row 15, columns 8 to 15 of Q")
    assert explorer.page.evaluate("document.activeElement.id") == "banks"


# --- Both ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
def test_width_and_scheme(browser: "sync_api.Browser", built: Path, page: str, width: int,
                          scheme: str) -> None:
    explorer = Explorer(browser, built, width, scheme)
    evaluate = explorer.page.evaluate
    addresses = {"fragments.html": ["mma.a", "ldmatrix.x2", "ldmatrix.x4.trans"],
                 "banks.html": ["02b,64,v_loads,own", "03,128,k_ldmatrix,unpadded"]}
    for address in addresses[page]:
        explorer.open(f"{page}#{address}")
        assert evaluate("document.documentElement.scrollWidth") <= width
        for svg in explorer.page.locator("svg").all():
            box = svg.bounding_box()
            assert box["width"] > 100 and box["x"] + box["width"] <= width
    background = evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", background))) < 64) == (scheme == "dark")
    explorer.page.close()
    assert explorer.errors == []


@pytest.mark.parametrize("page", PAGES)
def test_start(explorer: Explorer, page: str) -> None:
    """The fastest of three, as other tests run meanwhile. The scripts draw before domInteractive."""
    times = []
    for _ in range(3):
        explorer.open(page)
        times.append(explorer.page.evaluate(
            "(t => t.domInteractive - t.navigationStart)(performance.timing)"))
    assert min(times) < MOST_START_MS


def luminance(colour: str) -> float:
    parts = [int(colour[i:i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055)**2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(first: str, second: str) -> float:
    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_in_both_schemes() -> None:
    style = (SOURCES / "explorer.css").read_text()
    light, dark = re.findall(r":root \{(.*?)\}", style, re.DOTALL)
    for scheme in (light, dark):
        colours = dict(re.findall(r"--([\w-]+): (#\w{6});", scheme))
        cells = [name for name in colours if name.startswith("tint-")]
        for text, grounds in {"text": ["page", *cells], "quiet": ["page"],
                              "accent": ["page"]}.items():
            for ground in grounds:
                assert contrast(colours[text], colours[ground]) >= LEAST_CONTRAST, (text, ground)
        for ground in ("page", *cells):  # outlines
            assert contrast(colours["mark"], colours[ground]) >= 3, ground


@pytest.mark.parametrize("name", ["fragments", "banks"])
def test_size_of_the_code(name: str) -> None:
    files = [f"{name}.html", f"{name}.js", "explorer.css", "explorer.js"]
    assert sum((SOURCES / file).stat().st_size for file in files) < MOST_CODE_BYTES


@pytest.mark.parametrize("page", PAGES)
def test_controls_have_labels_and_changes_are_announced(explorer: Explorer, page: str) -> None:
    explorer.open(page)
    selects = explorer.page.locator("select")
    for i in range(selects.count()):
        assert selects.nth(i).evaluate("select => select.labels.length") == 1
    assert explorer.page.get_attribute("#answer", "aria-live") == "polite"
    for svg in explorer.page.locator("svg").all():
        names = svg.get_attribute("aria-labelledby").split()
        assert svg.get_attribute("tabindex") == "0" and all(map(explorer.text, names))


def test_data_is_one_statement(built: Path) -> None:
    """A classic script: no import, no fetch, no module."""
    for name in ("fragments", "banks"):
        text = (built / "data" / f"{name}.js").read_text()
        assert json.loads(re.fullmatch(rf"const {name.upper()} = (.*);\n", text, re.DOTALL)[1])
        assert 'type="module"' not in (SOURCES / f"{name}.html").read_text()
