"""Pictures of who does what in steps with roles: tensor copies, the products and the softmax of each
warpgroup, and the tensor cores. recorded.py says what happens when."""

from pathlib import Path

from plots.figures.pictures_svg import Picture
from plots.figures.recorded import HEAD_DIM, TILES, Bar, Machine

WIDTH, LEFT, TOP, ROW_HEIGHT = 880, 136, 34, 28
BAR_TOP, BAR_HEIGHT = 3, 22


def rows_of(machine: Machine) -> list[tuple[str, list[str]]]:
    """The rows in groups, each with its owner."""
    names = {bar.row for bar in machine.bars}
    groups = [
        (
            machine.kind.loads,
            sorted((row for row in names if row[0] in "QKV"), key=lambda row: ("QKV".index(row[0]), row)),
        )
    ]
    for role in machine.roles:
        if role.products:
            name = machine.name(role)
            groups.append((name, [f"{name}: {what}" for what in ("Q K^T", "softmax", "P V")]))
    return [*groups, ("", ["tensor cores", *sorted(row for row in names if row[0] == "O")])]


def box(picture: Picture, at: tuple[float, float], width: float, look: str, hatch: str = "", text: str = "") -> None:
    x, y = at
    picture.tile(x, y + BAR_TOP, width, BAR_HEIGHT, look, hatch, "line")
    picture.label(x + width / 2, y + BAR_TOP + BAR_HEIGHT / 2, text, look)


def draw_bar(picture: Picture, bar: Bar, y: float, unit: float) -> None:
    begins = bar.arrival or bar.start
    if begins > bar.issue:  # a copy on its way, or a product that waits in line
        picture.rect(LEFT + bar.issue * unit, y + BAR_TOP, (begins - bar.issue) * unit, BAR_HEIGHT, "none line dash")
    box(picture, (LEFT + begins * unit, y), (bar.end - begins) * unit, bar.look, "busy" if bar.beside else "", bar.text)


def draw_turns(picture: Picture, machine: Machine, tops: dict[str, float], unit: float) -> None:
    for role in machine.roles:
        for since, turn in (times for thread, *times in machine.turns if thread == role.thread):
            y = tops[f"{machine.name(role)}: Q K^T"]
            middle = y + BAR_TOP + BAR_HEIGHT / 2
            if turn > since:
                picture.line(LEFT + since * unit, middle, LEFT + turn * unit, middle, "thin dash")
            picture.line(LEFT + turn * unit, y + 1, LEFT + turn * unit, y + 3 * ROW_HEIGHT - 1, "thick")


def draw_rows(picture: Picture, machine: Machine, unit: float) -> float:
    """Returns where the rows end."""
    tops, y = {}, TOP
    for owner, rows in rows_of(machine):
        picture.line(8, y, WIDTH - 8, y, "faint")
        if owner:
            picture.text(20, y + len(rows) * ROW_HEIGHT / 2, owner, "small", "middle", turned=True)
        for row in rows:
            tops[row] = y
            picture.text(LEFT - 8, y + 18, row.removeprefix(f"{owner}: "), "small bold", "end")
            y += ROW_HEIGHT
    for bar in machine.bars:
        draw_bar(picture, bar, tops[bar.row], unit)
    for bar in machine.products():
        box(
            picture,
            (LEFT + bar.start * unit, tops["tensor cores"]),
            (bar.end - bar.start) * unit,
            bar.look,
            text=bar.row.split(":")[0][-1],
        )
    draw_turns(picture, machine, tops, unit)
    picture.line(8, y, WIDTH - 8, y, "faint")
    return y


def draw_legend(picture: Picture, machine: Machine, y: float) -> float:
    """Returns where the next line would be."""
    computes, step = machine.kind.computes, 21
    picture.rect(8, y - 13, 32, 16, "none line dash")
    picture.text(
        48, y, "a copy on its way, then the tile in its buffer until all have read it; or a product that waits in line"
    )
    if any(bar.beside for bar in machine.bars):
        y += step
        picture.tile(8, y - 13, 32, 16, "n", "busy")
        picture.text(48, y, f"a softmax beside a product of the same {computes}")
    if machine.turns:
        y += step
        picture.line(24, y - 14, 24, y + 5, "thick")
        waits = any(turn > since for _, since, turn in machine.turns)
        picture.text(48, y, "its turn begins" + "; a dashed line: it has waited for that" * waits)
    computing = computes.replace("group", "warpgroup") + "s"
    tiles = (
        "Numbers are tiles of keys"
        if machine.kind.query_tiles == 1
        else "Letters are tiles of queries, numbers tiles of keys"
    )
    return picture.texts(
        8,
        y + step,
        (
            f"{tiles}; at the tensor cores, {computing} (with Q K^T or P V, by the colour of the row).",
            "The order is that of the waits and arrivals in the step. Lengths are not measured: a copy "
            "and a product are drawn",
            "one unit long, a softmax two; products run one after the other.",
        ),
        step=step,
    )


def roles(step: str, program: Path, directory: Path) -> None:
    machine = Machine(step, program)
    kind = machine.kind
    label = f"Step {step.removeprefix('step')}"
    told = "; ".join(f"{bar.row} {bar.text} from {bar.start:g} to {bar.end:g}" for bar in machine.bars)
    picture = Picture(
        f"pipeline_{step}",
        WIDTH,
        0,
        f"{label}: who does what, and when",
        f"One thread block with {kind.query_tiles} times {TILES} tiles of keys, D = {HEAD_DIM}: "
        f"{kind.idea}. In units of a product, from the start: {told}. Between the first and the "
        f"last product the tensor cores are idle for {machine.idle():g} units.",
    )
    picture.text(8, 18, f"{label}: {kind.idea}", "bold")
    unit = (WIDTH - LEFT - 14) / machine.end
    bottom = draw_rows(picture, machine, unit)
    picture.arrow((LEFT, bottom + 10), (LEFT + machine.end * unit, bottom + 10))
    picture.height = draw_legend(picture, machine, bottom + 40) - 10
    picture.save(directory)
