"""The picture on the first page: attention as products of matrices, with one tile of the online softmax."""

from pathlib import Path

import numpy as np

from plots.figures.pictures_svg import Picture

N, D, TILE = 9, 4, 3  # queries and keys; numbers per row; BLOCK_M and BLOCK_N
CELL = 13
SIZE, DEPTH = N * CELL, D * CELL
Q_X, S_X, M_X, L_X, P_X, O_X = 30, 96, 226, 243, 269, 400
TOP = 160  # of Q, S, P and O
AT = TILE * CELL  # where the outlined tile begins
INK = {"q": "#3b82d6", "k": "#e08a2e", "v": "#4fa83d", "s": "#9068d0", "n": "#8b96a3", "o": "#d9566f"}
STYLE = "text{font-size:16px}.small{font-size:14px}" + "".join(
    f".heat-{name}{{fill:{colour}}}" for name, colour in INK.items()
)


def matrix(picture: Picture, x: float, y: float, values: np.ndarray, name: str) -> None:
    """Larger values are darker."""
    shade = 0.12 + 0.88 * (values - values.min()) / np.ptp(values)
    for (row, column), opacity in np.ndenumerate(shade):
        picture.rect(
            x + column * CELL, y + row * CELL, CELL - 1, CELL - 1, f"heat-{name}", f' fill-opacity="{opacity:.2f}"'
        )


def attention(directory: Path) -> None:
    """Its values are computed from random Q, K and V."""
    q, k, v = np.random.default_rng(3).standard_normal((3, N, D))
    s = q @ k.T / np.sqrt(D)
    m = s.max(axis=1, keepdims=True)
    l = np.exp(s - m).sum(axis=1, keepdims=True)
    p = np.exp(s - m) / l
    picture = Picture(
        "attention",
        O_X + DEPTH + 16,
        TOP + SIZE + 34,
        "Attention, and one tile of it",
        "Q is left of S, and K transposed above it: S = Q K^T. Each row of S has a maximum m and a sum l: P = "
        "exp(S - m) / l. P is left of O, and V above it: O = P V. Outlined is what a kernel has on chip at a time: "
        "BLOCK_M rows of Q and O with their m and l, BLOCK_N rows of K and V, and their tile of S and P.",
        STYLE,
    )
    k_y, v_y = TOP - 14 - DEPTH, TOP - 14 - SIZE
    for x, y, values, name in (
        (Q_X, TOP, q, "q"),
        (S_X, k_y, k.T, "k"),
        (S_X, TOP, s, "s"),
        (M_X, TOP, m, "n"),
        (L_X, TOP, l, "n"),
        (P_X, TOP, p, "s"),
        (O_X, v_y, v, "v"),
        (O_X, TOP, p @ v, "o"),
    ):
        matrix(picture, x, y, values, name)
    for x, y, width, height in (
        (Q_X, TOP + AT, DEPTH, AT),
        (S_X + AT, k_y, AT, DEPTH),
        (S_X + AT, TOP + AT, AT, AT),
        (M_X, TOP + AT, L_X - M_X + CELL, AT),
        (P_X + AT, TOP + AT, AT, AT),
        (O_X, v_y + AT, DEPTH, AT),
        (O_X, TOP + AT, DEPTH, AT),
    ):
        picture.rect(x - 1.5, y - 1.5, width + 2, height + 2, "none thick")
    bottom = TOP + SIZE + 20
    for x, y, text in (
        (Q_X + DEPTH / 2, bottom, "Q"),
        (S_X + SIZE / 2, bottom, "S = Q Kᵀ"),
        (S_X + SIZE / 2, k_y - 26, "Kᵀ"),
        (M_X + 6, bottom, "m"),
        (L_X + 6, bottom, "l"),
        (P_X + SIZE / 2, bottom, "P"),
        (O_X + DEPTH / 2, v_y - 8, "V"),
        (O_X + DEPTH / 2, bottom, "O = P V"),
    ):
        picture.text(x, y, text, "bold", "middle")
    picture.text(S_X + SIZE / 2, k_y - 8, "BLOCK_N", "small mark", "middle")
    picture.text(Q_X - 10, TOP + SIZE / 2, "BLOCK_M", "small mark", "middle", turned=True)
    for y, text in ((TOP - 34, "softmax of each row:"), (TOP - 14, "P = exp(S − m) / l")):
        picture.text(P_X + SIZE / 2 - 22, y, text, "small", "middle")
    picture.save(directory)
