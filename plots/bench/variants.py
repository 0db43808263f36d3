"""Measures the gain of each idea of a step: changed copies of steps, interleaved with the steps.

Usage: python3 -m plots.bench.variants BUILD COMMIT (`make variants` calls it, on a GPU)

A variant is a step with parts of its source replaced. Writes the tables of docs/step02c.md,
docs/step03.md and docs/step06.md. Exits with 1 if a variant computes another answer than its step.
"""

import subprocess
import sys
from datetime import date
from pathlib import Path

import numpy as np

from plots.bench.cases import case
from plots.bench.contestants import Inputs, Mask, Outputs, StepCall, saved_masks
from plots.bench.step_library import Device, StepLibrary
from plots.bench.turns import Plan, Stopwatch, measure
from plots.sections import with_section

HEAD_DIMS, SEQLEN = (64, 128, 256), 4096
PLAN = Plan(200.0, least=21)
ROUNDING = 2.0**-10  # of O, whose entries are below 1

ONE_TILE = ("HEAD_DIM <= 128 ? 2 : 1;", "1;")
# Rows of O stored from the fragments, 4 bytes per lane, as in step 02b.
SMALL_STORES = ("""  __syncwarp();  // the rows are complete: a lane stores what other lanes of the warp have written
""", """  for (int i = 0; i < M_FRAGMENTS; i++) {
    for (int half = 0; half < 2; half++) {
      const int row = 16 * i + 8 * half + lane / 4;
      if (first + row >= rows) continue;
      for (int column = lane % 4 * 2; column < HEAD_DIM; column += 8)
        *(uint32_t *)&o_global[(first + row) * row_stride + column] =
            *(const uint32_t *)&o_warp[row * SMEM_STRIDE<HEAD_DIM> + column];
    }
  }
  return;
""")
ONE_BUFFER = [
    ("2 * (BLOCK_M + 2 * BLOCK_N) *", "2 * (BLOCK_M + BLOCK_N) *"),
    ("T *v_shared = k_shared + Tile::BLOCK_N * SMEM_STRIDE<HEAD_DIM>;", "T *v_shared = k_shared;"),
    ("""    load_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(v_shared, v_global, problem.v_strides.row, first_key,
                                                problem.kv_len);
    __syncthreads();  // K,""", "    __syncthreads();  // K,"),
    ("""    multiply_qk<T, HEAD_DIM>(s, q_warp, k_shared);
""", """    multiply_qk<T, HEAD_DIM>(s, q_warp, k_shared);
    __syncthreads();
    load_tile<HEAD_DIM, Tile::BLOCK_N, THREADS>(v_shared, v_global, problem.v_strides.row, first_key,
                                                problem.kv_len);
"""),
    ("    update_softmax(s, m, l, o, scale_log2);\n",
     "    update_softmax(s, m, l, o, scale_log2);\n    __syncthreads();\n"),
]
# Step 06 with the online softmax of the steps before it.
EVERY_MAXIMUM = [
    ("constexpr float MOST_SUM = 512;", "constexpr float MOST_SUM = INFINITY;"),
    ("    exponentiate<T>(probs[0], sums[0], s, 0, m, scale_log2);\n",
     """    float maxima[M_FRAGMENTS][2];
    row_maxima(maxima, s, 0);
    raise_m(m, l, o, maxima, scale_log2);
    exponentiate<T>(probs[0], sums[0], s, 0, m, scale_log2);
"""),
    ("    exponentiate<T>(probs, sums, s, 0, m, scale_log2);\n    store_probs", """      float maxima[M_FRAGMENTS][2];
      row_maxima(maxima, s, 0);
      exchange(maxima, exchanged + pair_row, side, [](float a, float b) { return fmaxf(a, b); });
      raise_m(m, l, o, maxima, scale_log2);
      exponentiate<T>(probs, sums, s, 0, m, scale_log2);
    store_probs"""),
]
COPIES_FIRST = [
    ("    const KeyTile next = *++list;\n    if (list < end) copy_keys(next, 1 - stage);\n", ""),
    ("    float s[M_FRAGMENTS][BLOCK_N / 8][4] = {};\n    multiply_qk",
     """    const KeyTile next = *++list;
    if (list < end) copy_keys(next, 1 - stage);
    float s[M_FRAGMENTS][BLOCK_N / 8][4] = {};
    multiply_qk"""),
]
# The exponentials of the next keys after P V: __syncwarp() keeps nvcc from moving them.
NEXT_EXPONENTIALS = """      if (part + 1 < PARTS) {
        exponentiate<T>(probs[1 - now], sums[1 - now], s, (part + 1) * PART / 8, m, scale_log2);
      }
"""
EXPONENTIALS_APART = [
    (NEXT_EXPONENTIALS, ""),
    ("    }\n    tile = next;\n  }\n\n  cp_async_wait<0>();  // Q and the tiles of zeros, if no key was "
     "attended\n  __syncthreads();",
     "      __syncwarp();\n" + NEXT_EXPONENTIALS + "    }\n    tile = next;\n  }\n\n"
     "  cp_async_wait<0>();\n  __syncthreads();"),
]
VARIANTS = {  # name: step, replacements
    "02c_ldmatrix": ("step02c", [ONE_TILE, SMALL_STORES]),
    "02c_32_rows": ("step02c", [SMALL_STORES]),
    "02c_one_buffer": ("step02c", ONE_BUFFER),
    "06_every_maximum": ("step06", EVERY_MAXIMUM),
    "06_addresses": ("step06", [('#include "device/warp.cuh"\n',
                                 '#include "device/warp.cuh"\n#define keep_in_register(x) (void)(x)\n')]),
    "06_copies_first": ("step06", COPIES_FIRST),
    "06_apart": ("step06", EXPONENTIALS_APART),
    "06_fewer_keys": ("step06", [("(LARGE ? 64 : 32)", "32")]),
    "06_no_pairs": ("step06", [("PAIR_CONFIG<__half>,  PAIR_CONFIG<__nv_bfloat16>, ", "")]),
}
# The head dimensions whose kernels a variant changes, where these are not all.
CHANGED = dict.fromkeys(("06_copies_first", "06_apart", "06_fewer_keys"), (64, 128)) | {
    "06_no_pairs": (256,)}
TABLES = {  # page: rows of its table
    "docs/step02c.md": {
        "step02b": "step 02b", "02c_ldmatrix": "ldmatrix, with 16 rows per warp",
        "02c_32_rows": "32 rows per warp (D ≤ 128)",
        "step02c": "O in 16-byte stores: step 02c"},
    "docs/step03.md": {
        "step02c": "step 02c", "02c_one_buffer": "step 02c with one buffer for K and V",
        "step03": "cp.async: step 03", "step04": "two buffers again: step 04"},
    "docs/step06.md": {
        "step05": "step 05", "step06": "step 06",
        "06_every_maximum": "the maximum of every tile; at D = 256 a second barrier per tile",
        "06_addresses": "without `keep_in_register`", "06_copies_first": "copies before Q K^T (D ≤ 128)",
        "06_apart": "exponentials after P V, not beside it (D ≤ 128)",
        "06_fewer_keys": "half as many keys per tile (D ≤ 128)",
        "06_no_pairs": "without pairs of warps: 64 queries, 32 keys (D = 256)"},
}


def build(folder: Path) -> None:
    """Builds lib*.so of all variants with a rule of the Makefile."""
    (sources := folder / "variants").mkdir(exist_ok=True)
    for name, (step, replacements) in VARIANTS.items():
        text = next(Path("steps").glob(f"{step}_*.cu")).read_text()
        for old, new in replacements:
            if text.count(old) != 1:
                sys.exit(f"variants: {name}: {step} must hold once: {old.strip()}")
            text = text.replace(old, new)
        (sources / f"{name}.cu").write_text(text)
    libraries = [f"{sources}/lib{name}.so" for name in VARIANTS]
    subprocess.run(["make", "-j8", "BACKEND=cuda", *libraries], check=True)


def main() -> int:
    folder = Path(sys.argv[1])
    build(folder)
    paths = {name: (folder / "variants" if name in VARIANTS else folder) / f"lib{name}.so"
             for rows in TABLES.values() for name in rows}
    steps = {name: StepLibrary(path.resolve()) for name, path in paths.items()}
    device, speeds, wrong = Device(steps["step04"]), {}, []
    with saved_masks(folder.resolve() / "step06", {("full", SEQLEN)}) as folders:
        mask = Mask(device, folders["full", SEQLEN], case(SEQLEN, 64))
    for head_dim in HEAD_DIMS:
        problem = case(SEQLEN, head_dim)
        inputs, outputs, answers = Inputs(device, problem), Outputs(device, problem), {}
        calls = {name: StepCall(step, inputs, outputs,
                                mask if step.takes_block_masks else None)
                 for name, step in steps.items()}
        for name, call in calls.items():
            outputs.poison()
            call()
            answers[name] = outputs.head(0, 0)[0]
        wrong += [name for name, (step, _) in VARIANTS.items()
                  if not np.allclose(answers[name], answers[step], rtol=0, atol=ROUNDING)]
        operations = 4 * problem.batch * problem.heads * SEQLEN**2 * head_dim
        for name, times in measure(calls, Stopwatch(device), PLAN).times.items():
            speeds[name, head_dim] = operations / times.summary()["median_ms"] * 1e-9
    gpu = subprocess.run(["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "-i", "0"],
                         capture_output=True, text=True, check=True).stdout.strip()
    if wrong:
        print(f"variants: other answers than their steps: {', '.join(wrong)}", file=sys.stderr)
        return 1
    for page, rows in TABLES.items():
        lines = ["TFLOP/s on the problem above without a mask, all in turns in another run on an "
                 f"{gpu}; compare only within this table ({date.today()}, "
                 f"commit {sys.argv[2]}):", "",
                 "| | " + " | ".join(f"D = {d}" for d in HEAD_DIMS) + " |",
                 "|---|" + "---|" * len(HEAD_DIMS),
                 *(f"| {text} | " + " | ".join(
                     f"{speeds[name, d]:.0f}" if d in CHANGED.get(name, HEAD_DIMS) else "–"
                     for d in HEAD_DIMS) + " |" for name, text in rows.items())]
        path = Path(page)
        path.write_text(with_section(path.read_text(), "variants", "`make variants`",
                                     "\n".join(lines)))
        print(f"{page}\n" + "\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
