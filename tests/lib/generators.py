"""The inputs that the programs draw, computed again in NumPy.

Written from the descriptions in common/host/io/random.h and inputs.h. Only integer operations and
double-precision + - * / sqrt are used, in the documented order, so every element has the same bits.
"""

import numpy as np

from tests.lib.reference import rounded_input
from tests.lib.problem import Problem

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
SQRT_HALF_BITS = np.int64(0x3FE6A09E667F3BCD)
LN_2 = float.fromhex("0x1.62e42fefa39efp-1")

# Streams: one for each tensor, and one for each other draw.
Q, K, V, D_O, OUTLIER_DRAW, OUTLIER, TARGET, SINK = 0, 1, 2, 3, 8, 16, 24, 32

# Wichura's algorithm AS 241 (1988), routine PPND16: numerator and denominator of three rational
# functions, lowest power first.
CENTRAL = (
    (
        3.3871328727963666080e0,
        1.3314166789178437745e2,
        1.9715909503065514427e3,
        1.3731693765509461125e4,
        4.5921953931549871457e4,
        6.7265770927008700853e4,
        3.3430575583588128105e4,
        2.5090809287301226727e3,
    ),
    (
        1.0,
        4.2313330701600911252e1,
        6.8718700749205790830e2,
        5.3941960214247511077e3,
        2.1213794301586595867e4,
        3.9307895800092710610e4,
        2.8729085735721942674e4,
        5.2264952788528545610e3,
    ),
)
NEAR_TAIL = (
    (
        1.42343711074968357734e0,
        4.63033784615654529590e0,
        5.76949722146069140550e0,
        3.64784832476320460504e0,
        1.27045825245236838258e0,
        2.41780725177450611770e-1,
        2.27238449892691845833e-2,
        7.74545014278341407640e-4,
    ),
    (
        1.0,
        2.05319162663775882187e0,
        1.67638483018380384940e0,
        6.89767334985100004550e-1,
        1.48103976427480074590e-1,
        1.51986665636164571966e-2,
        5.47593808499534494600e-4,
        1.05075007164441684324e-9,
    ),
)
FAR_TAIL = (
    (
        6.65790464350110377720e0,
        5.46378491116411436990e0,
        1.78482653991729133580e0,
        2.96560571828504891230e-1,
        2.65321895265761230930e-2,
        1.24266094738807843860e-3,
        2.71155556874348757815e-5,
        2.01033439929228813265e-7,
    ),
    (
        1.0,
        5.99832206555887937690e-1,
        1.36929880922735805310e-1,
        1.48753612908506148525e-2,
        7.86869131145613259100e-4,
        1.84631831751005468180e-5,
        1.42151175831644588870e-7,
        2.04426310338993978564e-15,
    ),
)


def _mix(x: np.ndarray) -> np.ndarray:
    """SplitMix64's finaliser on an array of uint64 (arrays wrap around; NumPy's scalars warn)."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def random_bits(seed: int, stream: int, index: np.ndarray) -> np.ndarray:
    """64 random bits for each index."""
    seed_array = np.array([seed], dtype=np.uint64)
    start = _mix(_mix(seed_array + GOLDEN) + np.uint64(stream))
    return _mix(start + index.astype(np.uint64) * GOLDEN)


def random_uniform(seed: int, stream: int, index: np.ndarray) -> np.ndarray:
    """Uniform in the open interval (0, 1)."""
    high = random_bits(seed, stream, index) >> np.uint64(12)
    return high.astype(np.float64) * 2.0**-52 + 2.0**-53


def _log(x: np.ndarray) -> np.ndarray:
    """Natural logarithm without the C library's, which differs between machines."""
    bits = x.view(np.int64)
    exponent = (bits - SQRT_HALF_BITS) >> np.int64(52)
    m = (bits - (exponent << np.int64(52))).view(np.float64)
    f = (m - 1) / (m + 1)
    f2 = f * f
    series = np.zeros_like(x)
    for n in range(21, 2, -2):
        series = (series + 1.0 / n) * f2
    return exponent * LN_2 + 2 * (f + f * series)


def _polynomial(coefficients: tuple, x: np.ndarray) -> np.ndarray:
    y = np.full_like(x, coefficients[7])
    for c in coefficients[6::-1]:
        y = y * x + c
    return y


def _quantile(p: np.ndarray) -> np.ndarray:
    """The p-quantile of N(0, 1)."""
    q = p - 0.5
    z = np.empty_like(p)
    central = np.abs(q) <= 0.425
    r = 0.180625 - q[central] * q[central]
    z[central] = q[central] * _polynomial(CENTRAL[0], r) / _polynomial(CENTRAL[1], r)

    tail = ~central
    r = np.sqrt(-_log(np.where(q[tail] < 0, p[tail], 1 - p[tail])))
    near = _polynomial(NEAR_TAIL[0], r - 1.6) / _polynomial(NEAR_TAIL[1], r - 1.6)
    far = _polynomial(FAR_TAIL[0], r - 5) / _polynomial(FAR_TAIL[1], r - 5)
    distance = np.where(r <= 5, near, far)
    z[tail] = np.where(q[tail] < 0, -distance, distance)
    return z


def random_normal(seed: int, stream: int, index: np.ndarray) -> np.ndarray:
    """N(0, 1)."""
    return _quantile(random_uniform(seed, stream, index))


def _outlier(seed: int, stream: int, index: np.ndarray) -> np.ndarray:
    x = random_normal(seed, stream, index)
    hit = random_uniform(seed, OUTLIER_DRAW + stream, index) < 0.001
    x[hit] = x[hit] + 10 * random_normal(seed, OUTLIER + stream, index[hit])
    return x


def _spiky_queries(p: Problem, index: np.ndarray) -> np.ndarray:
    """Four times a key that the query attends (any key if it attends none), plus N(0, 0.01)."""
    row, d = index // p.head_dim, index % p.head_dim
    q = row % p.seqlen
    head = row // p.seqlen % p.heads
    batch = row // p.seqlen // p.heads
    attended = p.attended_keys()[q]
    keys = np.where(attended > 0, attended, p.seqlen_kv)
    key = (random_bits(p.seed, TARGET, row) % keys.astype(np.uint64)).astype(np.int64)
    kv_row = (batch * p.kv_heads + head // (p.heads // p.kv_heads)) * p.seqlen_kv + key
    near_key = random_normal(p.seed, K, kv_row * p.head_dim + d)
    return 4 * near_key + 0.1 * random_normal(p.seed, Q, index)


def _with_sink(p: Problem, stream: int, x: np.ndarray) -> np.ndarray:
    """Column 0 alone gives the score of key 0, from 0 to 11, and its V is 0."""
    if stream == Q:
        x[..., 0] = 11 * random_uniform(p.seed, SINK, np.arange(x[..., 0].size)).reshape(x.shape[:-1])
    if stream in (Q, D_O):
        return x
    x[:, :, 0] = 0
    if stream == K:
        x[..., 0] = 0
        x[:, :, 0, 0] = np.sqrt(p.head_dim)
    return x


def _drawn(p: Problem, stream: int, shape: tuple) -> np.ndarray:
    index = np.arange(np.prod(shape, dtype=np.int64))
    if p.input == "constant":
        x = np.full(index.shape, 0.5)
    elif p.input == "outlier":
        x = _outlier(p.seed, stream, index)
    elif p.input == "spiky" and stream == Q:
        x = _spiky_queries(p, index)
    else:
        x = random_normal(p.seed, stream, index)
    return _with_sink(p, stream, x.reshape(shape)) if p.input == "sink" else x.reshape(shape)


def draw_inputs(p: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q, K and V in double precision, [B, H, N, D], not yet rounded to the dtype."""
    return (_drawn(p, Q, p.q_shape()), _drawn(p, K, p.kv_shape()), _drawn(p, V, p.kv_shape()))


def rounded_inputs(p: Problem) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Q, K and V as the program uses them: rounded once to the dtype, with scales to e4m3."""
    return tuple(rounded_input(p.dtype, x, p.kv_heads, p.scales) for x in draw_inputs(p))


def rounded_d_o(p: Problem) -> np.ndarray:
    """dO of a backward step, rounded to the dtype."""
    return rounded_input(p.dtype, _drawn(p, D_O, p.q_shape()), p.kv_heads)
