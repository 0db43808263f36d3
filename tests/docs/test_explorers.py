"""The explorers, as a browser shows them from file://.

Their texts are compared with what an H200 printed (tests/data/layouts_h200.txt) and with the lab's
counts of the steps.
"""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from playwright.sync_api import Page

from plots.tools import layouts
from tests.docs.conftest import EXPLORERS, SITE
from tests.lib.programs import REPOSITORY, Program, read_records

MOST_CODE_BYTES = 48_000
exhaustive = pytest.mark.exhaustive
HALVES = {"lo": "lower half", "hi": "upper half"}


def open_page(page: Page, address: str) -> None:
    page.goto("about:blank")
    page.goto(f"{(SITE / 'explorers').as_uri()}/{address}")


def press(page: Page, *keys: str) -> str:
    for key in keys:
        page.keyboard.press(key)
    return page.inner_text("#answer")


def hover(page: Page, svg: str, index: int) -> str:
    page.hover(f"#{svg} [data-index='{index}']")
    return page.inner_text("#answer")


def test_header_leads_to_the_site_and_to_the_others(page: Page) -> None:
    open_page(page, f"{EXPLORERS[0]}.html")
    for name in EXPLORERS[1:]:
        page.get_by_role("navigation").get_by_role("link", name=name).click()
        page.wait_for_url(f"**/{name}.html*")
    page.get_by_role("link", name="Attention, step by step").click()
    page.wait_for_url("**/site/index.html")


def test_switch_of_the_site_holds_for_explorers(page: Page) -> None:
    page.goto((SITE / "index.html").as_uri())
    for theme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(19, 20, 22)")):
        page.evaluate("theme => localStorage.setItem('theme', theme)", theme)
        open_page(page, f"{EXPLORERS[0]}.html")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colour


@pytest.mark.parametrize("name", EXPLORERS)
def test_controls_have_labels_and_the_code_is_small(page: Page, name: str) -> None:
    open_page(page, f"{name}.html")
    controls = page.locator("select, input").all()
    assert controls and all(control.evaluate("c => c.labels.length || c.ariaLabel") for control in controls)
    assert page.locator("[aria-live=polite]").count() >= 1
    folder = REPOSITORY / "docs/explorers"
    html = (folder / f"{name}.html").read_text()
    files = re.findall(r'(?:src|href)="(\w+\.(?:js|css))"', html)  # without the data
    assert f"{name}.js" in files and "explorer.css" in files
    assert sum((folder / file).stat().st_size for file in (f"{name}.html", *files)) < MOST_CODE_BYTES


def expected_texts(name: str) -> dict[str, tuple[int, str]]:
    """Of each entry, by its name on the page: the lane and the words for its register."""
    table = layouts.read_table((REPOSITORY / "tests/data/layouts_h200.txt").read_text())
    operands = {
        "mma.a": ("A", layouts.a_cells),
        "mma.b": ("B", layouts.b_cells),
        "mma.cd": ("C", layouts.accumulator_cells),
    }
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


def test_every_entry_is_where_the_gpu_has_it(page: Page) -> None:
    open_page(page, "fragments.html")
    views = [option.get_attribute("value") for option in page.locator("#instruction option").all()]
    assert len(views) == 9 + len(WGMMA_OPERANDS) + 4
    for name in views[:9]:
        page.select_option("#instruction", name)
        for picture in ("matrix", "lanes"):
            found = {}
            for text in page.evaluate(WALK, picture):
                entry, lane, words = re.match(r"(\S+) is in lane (\d+), (.*?)\.", text).groups()
                found[entry] = int(lane), words
            assert found == expected_texts(name), (name, picture)


# PTX ISA 8.7, 9.7.15.5.1: row and column of value i of thread t of a warpgroup, in D and in A.
WGMMA_OPERANDS = {
    "wgmma.d": ("D", lambda t, i: (t // 32 * 16 + t % 32 // 4 + 8 * (i // 2 % 2), 8 * (i // 4) + t % 4 * 2 + i % 2)),
    "wgmma.a": (
        "A",
        lambda t, i: (t // 32 * 16 + t % 32 // 4 + (8 if i % 4 >= 2 else 0), t % 4 * 2 + i % 2 + (8 if i >= 4 else 0)),
    ),
}


@pytest.mark.parametrize("name", WGMMA_OPERANDS)
def test_every_entry_of_wgmma_is_where_the_manual_has_it(page: Page, name: str) -> None:
    letter, place = WGMMA_OPERANDS[name]
    expected = []
    for t in range(128):
        for i in range(8):
            row, column = place(t, i)
            register = f"d{i}, all 32 bits" if letter == "D" else f"a{i // 2}, {'upper' if i % 2 else 'lower'} half"
            expected.append(f"{letter}[{row}][{column}] is in warp {t // 32}, lane {t % 32}, register {register}.")
    open_page(page, f"fragments.html#{name}")
    assert page.evaluate(WALK, "lanes") == expected
    assert sorted(page.evaluate(WALK, "matrix")) == sorted(expected)
    assert hover(page, "matrix", 37 * 16 + 6) in expected  # another warp than the last one's
    assert page.locator("#lanes .mark.current").count() == 1


@pytest.mark.parametrize(
    "name", ["k.128", pytest.param("k.64", marks=exhaustive), pytest.param("v.128", marks=exhaustive), "v.64"]
)
def test_chunks_of_a_tile_are_where_the_swizzle_puts_them(page: Page, name: str) -> None:
    """The swizzle XORs the number of the 128-byte line into that of the 16-byte chunk; K is summed
    over columns, V over rows."""
    row_bytes, texts = int(name[2:]), []
    for row in range(32):
        for chunk in range(row_bytes // 16):
            linear = row * row_bytes + 16 * chunk
            at = linear ^ (linear // 128 % (row_bytes // 16) * 16)
            columns = f"{8 * chunk} to {8 * chunk + 7}"
            first, read = (
                (16 * (chunk // 2), f"k = {chunk % 2 * 8} to {chunk % 2 * 8 + 7} of n = {row}")
                if name[0] == "k"
                else (row // 16 * 16, f"n = {columns} of k = {row % 16}")
            )
            texts.append(
                f"{name[0].upper()}[{row}][{columns}] is chunk {chunk} of its row, at "
                f"byte {at}: place {at // 16 % 8} of line {at // 128}. The wgmma of "
                f"{'columns' if name[0] == 'k' else 'keys'} {first} to {first + 15} reads "
                f"it as {read}."
            )
    open_page(page, f"fragments.html#{name}")
    assert page.evaluate(WALK, "matrix") == texts
    assert sorted(page.evaluate(WALK, "lanes")) == sorted(texts)
    assert page.locator("#matrix .mark.lane").count() == 7  # the rest of a core matrix


def test_fragments_by_mouse_and_by_keyboard(page: Page) -> None:
    open_page(page, "fragments.html")
    assert hover(page, "matrix", 3 * 16 + 6) == "A[3][6] is in lane 15, register a0, lower half."
    assert hover(page, "lanes", 28 * 8 + 7) == "A[15][9] is in lane 28, register a3, upper half."
    for name in ("matrix", "lanes"):
        assert page.locator(f"#{name} .mark.current").count() == 1
    page.select_option("#instruction", "ldmatrix.x4.trans")
    assert hover(page, "matrix", 64 * 2 + 8 * 3 + 5) == (
        "M2[3][5] is in lane 21, register r2, upper half. Lane 19 passes the address of row 3 of M2."
    )
    open_page(page, "fragments.html")
    page.focus("#instruction")  # then the matrix, then the lanes
    press(page, "ArrowDown")
    assert page.url.endswith("#mma.b")
    assert press(page, "Tab", "ArrowDown", "ArrowRight").startswith("B[4][7] is in lane 30, ")
    assert press(page, "Tab", "ArrowRight", "ArrowUp").startswith("B[3][7] is in lane 29, ")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize(
    "step, dim, access, kind",
    [
        ("02b", 64, "k_stores", "shared_store"),
        ("03", 96, "q_ldmatrix", "ldmatrix"),
        ("05", 32, "o_loads", "shared_load"),
        ("06", 256, "v_ldmatrix", "ldmatrix"),
        ("10c", 96, "o_stores", "shared_store"),
        *(
            pytest.param(*trial, marks=exhaustive)
            for trial in (
                ("02b", 128, "v_loads", "shared_load"),
                ("06", 128, "o_stores", "shared_store"),
                ("10c", 128, "o_stores", "shared_store"),
            )
        ),
    ],
)
def test_wavefronts_are_those_of_the_lab(
    page: Page, tmp_path: Path, step: str, dim: int, access: str, kind: str
) -> None:
    open_page(page, f"banks.html#{step},{dim},{access},own")
    said = re.search(r"(\d+) wavefronts?, ideal (\d+)", page.inner_text("#counts"))
    place, program = page.inner_text("#source").split()[0], Program(f"step{step}")
    program.run(
        "-b",
        1,
        "-H",
        1,
        "-n",
        128,
        "-d",
        dim,
        f"--report=json:{tmp_path / 'lab'},banks",
        "--repeat",
        0,
        "--check",
        "none",
        cwd=REPOSITORY,
    )
    (line,) = (
        record
        for record in read_records(tmp_path / "lab")
        if record["record"] == "line"
        and record["kernel"].startswith(("attention_kernel", "pair_kernel"))
        and f"{record['file']}:{record['line']}" == place
    )
    requests, wavefronts, conflicts = (line[f"{kind}_{field}"] for field in ("requests", "wavefronts", "conflicts"))
    assert [int(said[1]) * requests, int(said[2]) * requests] == [wavefronts, wavefronts - conflicts]


# For each access of D = 96 in each layout, and of D = 128 in the one that D = 96 lacks: what the data
# says, and what is drawn.
DRAW_ALL = """() => BANKS.accesses.filter(own => [96, 128].includes(own.dim))
  .flatMap(own => LAYOUTS.filter((name, number) => own.layouts[number]
    && (own.dim === 96 || name === 'tensor128')).map(name => {
  writeAddress([own.step, own.dim, own.access, name]);
  showAddress();
  const svg = document.getElementById('banks');
  const lanes = [...svg.querySelectorAll('[data-index]')].map(cell => Number(cell.dataset.index));
  const { wavefronts, ideal } = own.layouts[LAYOUTS.indexOf(name)];
  return { name: location.hash, wavefronts, ideal,
           drawn: svg.querySelectorAll('.border').length,
           hatched: svg.querySelectorAll('.hatch').length > 0,
           lanes: lanes.sort((a, b) => a - b).join() };
}))"""


def test_all_wavefronts_and_lanes_are_drawn(page: Page) -> None:
    open_page(page, "banks.html")
    drawings = page.evaluate(DRAW_ALL)
    # Layouts, accesses of all steps.
    assert len(drawings) == 5 * (4 + 5 * 6 + 3)
    for drawing in drawings:
        assert drawing["drawn"] == drawing["wavefronts"], drawing
        assert drawing["hatched"] == (drawing["wavefronts"] > drawing["ideal"]), drawing
        assert drawing["lanes"] == ",".join(map(str, range(32))), drawing


@pytest.mark.parametrize("dim, layout, row_bytes", [(128, "own", 128), (128, "tensor64", 64), (96, "own", 64)])
def test_swizzles_of_tensor_copies(page: Page, dim: int, layout: str, row_bytes: int) -> None:
    """A lane stores two columns of O; the 128-byte line is XORed into the 16-byte chunk."""
    open_page(page, f"banks.html#10c,{dim},o_stores,{layout}")
    assert page.inner_text("#counts") == "1 wavefront, ideal 1: no bank conflict."
    for lane in range(0, 32, 5):
        linear = lane // 4 * row_bytes + lane % 4 * 4
        at = linear ^ (linear // 128 % (row_bytes // 16) * 16)
        text = hover(page, "banks", lane)
        assert text.startswith(
            f"Lane {lane}: row {lane // 4}, columns {lane % 4 * 2} to {lane % 4 * 2 + 1} of O, at byte {at} of the tile"
        )
        assert text.endswith(f"bank {at // 4 % 32}, wavefront 1 of 1.")
    cells = page.locator("#chunks text").all_text_contents()
    lines = [cells[8 * i + 24 : 8 * i + 32] for i in range(8)]  # after the numbers of lines and banks
    assert [[cell.rstrip("*") for cell in line] for line in lines] == [
        [
            f"{place // row_bytes},{place % row_bytes // 16}"
            for place in (
                byte ^ (byte // 128 % (row_bytes // 16) * 16) for byte in range(128 * line, 128 * line + 128, 16)
            )
        ]
        for line in range(8)
    ]


def test_banks_by_mouse_and_by_keyboard(page: Page) -> None:
    """The offsets are those that docs/lab.md shows for the same access."""
    open_page(page, "banks.html#03,64,k_ldmatrix,own")
    drawn = re.search(
        r"access     ldmatrix at .*?offset +([\d ]+)\n *bank +([\d ]+)\n",
        (REPOSITORY / "docs/lab.md").read_text(),
        re.DOTALL,
    )
    offsets, banks = (list(map(int, numbers.split())) for numbers in drawn.groups())
    for lane, (offset, bank) in enumerate(zip(offsets, banks, strict=True)):
        assert hover(page, "banks", lane) == (
            f"Lane {lane}: row {lane}, columns 0 to 7 of K, at byte {144 * lane} of the tile "
            f"(byte {offset} of shared memory), banks {bank} to {bank + 3}, wavefront 1 of 4."
        )
    open_page(page, "banks.html")
    page.focus("#step")
    press(page, "ArrowDown", "Tab", "Tab", "ArrowDown", "Tab", "ArrowDown", "ArrowDown")
    assert page.url.endswith("#04,64,q_ldmatrix,padded")
    assert press(page, "Tab", "ArrowRight", "ArrowDown").startswith("Lane 9: row 9, ")
    assert press(page, "End").startswith("Lane 31: row 15, columns 8 to 15 of Q")


# --- Shares -----------------------------------------------------------------------------------------

# SMs, key/value heads, query heads of each, head dimension, lengths.
DECODED = [
    (4, 2, 4, 64, (700, 33, 2500, 1200)),
    (132, 8, 4, 128, (4096,) * 8),  # 64 row groups: shares without seams
    (132, 8, 4, 128, (32768, 100, 5, 1, 0, 7000)),
    (132, 1, 16, 256, (131072,)),  # parts are so large that not all blocks have a place for them
    (16, 4, 1, 64, (65, 64, 63, 0, 129)),
    (2, 32, 2, 256, (17, 16, 15, 1000)),
    (1, 3, 3, 128, (1,)),
    (64, 2, 8, 64, tuple(range(1, 6400, 100))),
    (8, 1, 1, 128, (0, 0, 9000)),
    (132, 32, 1, 128, (2048,) * 64),  # more row groups than places
]


@pytest.mark.parametrize("sms, heads, group, dim, lengths", DECODED)
def test_shares_are_those_of_the_kernels(
    page: Page, sms: int, heads: int, group: int, dim: int, lengths: tuple[int, ...]
) -> None:
    """The parts that step 19 makes on the host, and the schedule that a kernel makes for step 20."""
    words = [heads, group, dim, *lengths]
    program = REPOSITORY / "build/cpu/explorers/explorer_data"
    environment = {**os.environ, "SIMT_SMS": str(sms)}
    done = subprocess.run(
        [program, "schedule", *map(str, words)], env=environment, capture_output=True, text=True, check=True
    )
    made = json.loads(done.stdout)
    open_page(page, "shares.html")
    said = page.evaluate(
        "problem => plan(problem)", {"sms": sms, "heads": heads, "group": group, "dim": dim, "lengths": lengths}
    )
    assert (said["parts"], len(said["rowGroups"])) == (made["parts"], made["row_groups"])
    of_sequence = said["parts"] * len(said["rowGroups"]) // len(lengths)
    tile, configured = said["config"]["tile"], said["config"]["rows"]
    for i, (begin, end) in enumerate(made["split"]):
        sequence, part = divmod(i, made["parts"])
        for block in said["split"][sequence * of_sequence + part : (sequence + 1) * of_sequence : made["parts"]]:
            (bar,) = block["bars"]
            assert (block["part"], bar["first"] * tile, bar["count"]) == (part, begin, -((begin - end) // tile))
    shares = [
        [
            share["bars"][0]["group"],
            share["bars"][0]["first"],
            sum(bar["count"] for bar in share["bars"]),
            share["bars"][-1]["group"],
            share["begin"],
            share["parts"],
        ]
        for share in said["shares"]
    ]
    assert shares == [share for share in made["shares"] if share[2]]
    assert configured == min(4, 1 << (group - 1).bit_length())


def test_shares_have_the_blocks_of_the_steps(page: Page) -> None:
    """Of a device with so many multiprocessors as the CPU backend has."""
    options = "-b 3 --lengths 700,33,1000 -d 64 -H 8 -G 2".split()
    open_page(page, "shares.html")
    said = page.evaluate(
        "problem => plan(problem)", {"sms": 4, "heads": 2, "group": 4, "dim": 64, "lengths": [700, 33, 1000]}
    )
    for name, blocks in (("step19", len(said["split"])), ("step20", len(said["shares"]))):
        text = Program(name).run(*options, "--info").stdout
        assert re.search(r"decode: (\d+) blocks", text)[1] == str(blocks)
        assert f"{said['config']['rows']} rows of Q, {said['config']['tile']} rows of K and V" in text


def test_shares_by_mouse_and_by_keyboard(page: Page) -> None:
    """Three sequences of 5, 2 and 9 tiles in four blocks: the example of docs/step20.md."""
    open_page(page, "shares.html#1,1,4,64,320-128-576")
    assert page.inner_text("#shares-note").startswith("4 blocks; 2 row groups with seams, 5 parts to merge. ")
    assert hover(page, "shares", 1) == (
        "Step 20, block 1, 4 tiles of row group 0 (sequence 0, head 0, rows 0 to 3): keys 256 to 319; "
        "row group 1 (sequence 1, head 0, rows 0 to 3): all 128 keys; "
        "row group 2 (sequence 2, head 0, rows 0 to 3): keys 0 to 63. It merges the 3 parts of row group 2."
    )
    assert hover(page, "split", 2) == (
        "Step 19, block 2, part 1 of 1 of row group 2 (sequence 2, head 0, rows 0 to 3): all 576 keys."
    )
    page.focus("#dim")
    assert press(page, "Tab", "End").startswith("Step 19, block ")
    text = press(page, "Tab", "End")
    assert text.startswith(
        "Step 20, block 3, 4 tiles of row group 2 (sequence 2, head 0, rows 0 to 3): keys 320 to 575."
    )
    assert text.endswith(" Block 1 merges the 3 parts of row group 2.")
    assert press(page, "Home").startswith("Step 20, block 0, 4 tiles of row group 0 (")
    assert page.locator("#shares .mark.current").count() == 1
    assert page.locator("#shares .seam").count() == 6  # on both sides of three cuts


def test_lengths_are_typed_or_drawn(page: Page) -> None:
    open_page(page, "shares.html")
    page.fill("#lengths", "10, 20 30")
    page.press("#lengths", "Enter")
    assert page.url.endswith(",10-20-30")
    for wrong in ("", "1,x", "-5", "0", "1.5", "131073", ",".join(["1"] * 65)):
        page.fill("#lengths", wrong)
        page.press("#lengths", "Enter")
        assert page.inner_text("#answer") == "Type 1 to 64 lengths, up to 131072 keys, not all 0."
    page.select_option("#drawn", "log")
    lengths = [int(word) for word in page.input_value("#lengths").split(", ")]
    assert len(lengths) == 32 and 100 <= min(lengths) < 300 < 10000 < max(lengths) <= 32768
    (row,) = re.findall(r"(\d+) % of all places", page.inner_text("#shares-note"))
    assert int(row) < int(re.search(r"(\d+) % of all places", page.inner_text("#split-note"))[1])
