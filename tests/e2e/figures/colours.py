"""How colours look: contrast by WCAG 2, and to colour-blind eyes.

The matrices are those of Machado, Oliveira and Fernandes (2009) for a whole lack of one kind of
cone; they apply to linear RGB. Distances are CIE 1976, in Lab under D65.
"""

import numpy as np

COLOUR_BLIND = {
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
                   [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                     [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                   [0.004733, 0.691367, 0.303900]],
}
TO_XYZ = np.array([[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750],
                   [0.0193339, 0.1191920, 0.9503041]])


def linear(colour: str) -> np.ndarray:
    """#rrggbb as linear RGB, 0 to 1."""
    srgb = np.array([int(colour[i:i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055)**2.4)


def contrast(one: str, other: str) -> float:
    """1 to 21."""
    low, high = sorted(float(TO_XYZ[1] @ linear(colour)) for colour in (one, other))
    return (high + 0.05) / (low + 0.05)


def lab(rgb: np.ndarray) -> np.ndarray:
    t = TO_XYZ @ rgb / TO_XYZ.sum(axis=1)
    f = np.where(t > (6 / 29)**3, np.cbrt(t), t / (3 * (6 / 29)**2) + 4 / 29)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def distance(one: str, other: str, eyes: str | None) -> float:
    """Below 10 colours are hard to tell apart when they are not side by side."""
    matrix = np.eye(3) if eyes is None else np.array(COLOUR_BLIND[eyes])
    a, b = (lab(np.clip(matrix @ linear(colour), 0, 1)) for colour in (one, other))
    return float(np.linalg.norm(a - b))
