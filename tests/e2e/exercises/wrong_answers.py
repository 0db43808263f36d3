"""Wrong answers of docs/wrong-answers.md as changes of the solution: exercise, first column, and pairs of
what the solution says and what the student wrote instead. Several lines are separated by newlines."""

Changes = tuple[tuple[str, str], ...]

KV = "head / (problem.q_heads / problem.kv_heads)"
MAX_LOOP = "for (int k = lane; k < keys; k += WARP_SIZE) row_max = fmaxf(row_max, s_row[k]);"
SUM_LOOP = "for (int k = lane; k < keys; k += WARP_SIZE) row_sum += __expf(s_row[k] - row_max);"
MAX_STEP = "x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, distance));"
SUM_STEP = "x += __shfl_xor_sync(FULL_WARP, x, distance);"
ELEMENT = "return row < rows && column < columns ? to_float(matrix[row * row_stride + column]) : 0.0f;"
LOAD_P = "p_shared[row][lane] = k + lane < keys ? p_row[k + lane] : 0.0f;"
KEYS = "return problem.mask == MASK_CAUSAL ? q + problem.kv_len - problem.q_len + 1 : problem.kv_len;"
MASKED = "lane + j * LANES < keys ? s[j] * scale_log2 : -INFINITY"
KEY_END = "keys_of_query(problem, min(first_q + BLOCK_M, problem.q_len) - 1);\n"
RESCALE_O = "o[c][x] *= rescale;"
FACTOR = "sum == 0.0f ? 0.0f : 1.0f / sum"
LSE = "m[i] * LN_2 + logf(sum)"
ROW_Q, ROW_K = "tiles.q[row + i * Tiles::ROW_STEP][d]", "tiles.k[lane + j * LANES][d]"
A2, A3 = "load_row_pair(q + 8),", "load_row_pair(q + 8 * STRIDE + 8)};"
Q_WARP = "&q_warp[g * STRIDE + d + j]"
P1 = "pack<T>(probs[n][2], probs[n][3])"
P2, P3 = "pack<T>(probs[n + 1][0], probs[n + 1][1])", "pack<T>(probs[n + 1][2], probs[n + 1][3])"

# Exercise 7 with other loops; the solution's stay behind them, dead.
QK = "#pragma unroll 4\n  for (int d = 0; d < HEAD_DIM; d += 4) {\n"
LOAD_Q = f"const float4 a = *reinterpret_cast<const float4 *>(&{ROW_Q});"
LOAD_K = f"const float4 b = *reinterpret_cast<const float4 *>(&{ROW_K});"
FOUR = "s[i][j] += a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w;"


def multiplied(loops: str) -> Changes:
    return ((QK, f"{loops}\n{QK.replace('d = 0', 'd = HEAD_DIM')}"),)


# Exercise 10 with the loops of its starting file.
FIRST = ("  const int lane = threadIdx.x % WARP_SIZE;\n#pragma unroll\n"
         "  for (int half = 0; half < 2; half++) {  // of the 16 rows: upper, lower")
QUERY, KEY = "first_q + lane / 4 + c / 2 * 8", "first_key + 8 * n + lane % 4 * 2 + c % 2"


def masked(query: str = QUERY, key: str = KEY, condition: str = "key >= attended_keys(problem, query)",
           score: str = "-INFINITY") -> Changes:
    """A mask that finds `query` and `key` of each score so; the solution's loops stay behind it, dead."""
    return ((FIRST, "  const int lane = threadIdx.x % WARP_SIZE;\n"
             "  for (int n = 0; n < N_FRAGMENTS; n++) {\n    for (int c = 0; c < 4; c++) {\n"
             f"      const int query = {query}, key = {key};\n      if ({condition}) s[n][c] = {score};\n"
             "    }\n  }\n  for (int half = 0; half < 0; half++) {"),)


WRONG: dict[str, dict[str, Changes]] = {
    "ex01": {
        "`kv_head = head`": ((KV, "head"),),
        "`kv_head = head % problem.kv_heads`": ((KV, "head % problem.kv_heads"),),
        "`kv_head = head / problem.kv_heads`": ((KV, "head / problem.kv_heads"),),
        "V takes `head`, K takes `kv_head`": (("kv_head * problem.v_strides.head", "head * problem.v_strides.head"),),
        "the strides of Q for all tensors": (("problem.k_strides.batch", "problem.q_strides.batch"),
                                             ("problem.k_strides.head", "problem.q_strides.head"),
                                             ("problem.v_strides.batch", "problem.q_strides.batch"),
                                             ("problem.v_strides.head", "problem.q_strides.head")),
        "the batch is forgotten in K and V": (("batch * problem.k_strides.batch + ", ""),
                                              ("batch * problem.v_strides.batch + ", "")),
        "`kv_head = index / group`, and the batch stride is added": (
            (KV, "index / (problem.q_heads / problem.kv_heads)"),),
        "O has offset 0, or the starting file": (
            ("batch * problem.o_strides.batch + head * problem.o_strides.head", "0"),),
        "`batch = index % problem.batch`, `head = index / problem.batch`": (("index / problem.q_heads", "index % problem.batch"),
                                                                ("index % problem.q_heads", "index / problem.batch")),
        "no batch: `batch = 0`, `head = index`, or offsets from lengths in place of strides": (
            ("index / problem.q_heads", "0"), ("index % problem.q_heads", "index")),
    },
    "ex02": {
        "no reduction of the sum": (("row_sum = warp_sum(row_sum);", ""),),
        "no reduction of the maximum": (("row_max = warp_max(row_max);", ""),),
        "distances 8 to 1, without 16": (
            ("int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {\n    x +=",
             "int distance = 8; distance > 0; distance /= 2) {\n    x +="),),
        "distances 32 to 1": (
            ("int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {\n    x +=",
             "int distance = 32; distance > 0; distance /= 2) {\n    x +="),),
        "each lane takes all keys": ((SUM_LOOP, SUM_LOOP.replace("= lane", "= 0").replace("+= WARP_SIZE", "+= 1")),),
        "`__shfl_down_sync` for the sum": ((SUM_STEP, SUM_STEP.replace("xor", "down")),),
        "`__shfl_down_sync` for both": ((SUM_STEP, SUM_STEP.replace("xor", "down")),
                                        (MAX_STEP, MAX_STEP.replace("xor", "down"))),
        "the maximum is not subtracted in the sum": (
            (SUM_LOOP, SUM_LOOP.replace("s_row[k] - row_max", "s_row[k]")),),
        "`row_max` begins with 0": (("float row_max = -INFINITY;", "float row_max = 0.0f;"),),
        "only the first 32 scores in the maximum": (
            (MAX_LOOP, "if (lane < keys) row_max = s_row[lane];"),),
        "up to `problem.kv_len` instead of `keys` (both loops, or the sum only)": (
            (SUM_LOOP, SUM_LOOP.replace("k < keys", "k < problem.kv_len")),),
        "a loop over `k` that reads `s_row[k + lane]` without a bound": (
            (SUM_LOOP, "for (int k = 0; k < keys; k += WARP_SIZE) {\n"
             "    row_sum += __expf(s_row[k + lane] - row_max);\n  }"),),
        "`warp_max()` in the loop over the keys": (
            (MAX_LOOP, MAX_LOOP.replace("s_row[k])", "warp_max(s_row[k]))")),),
        "32 shuffles of one lane after the other for the sum": (
            ("  for (int distance = WARP_SIZE / 2; distance > 0; distance /= 2) {\n    " + SUM_STEP + "\n  }\n"
             "  return x;", "  float sum = 0.0f;\n  for (int i = 0; i < WARP_SIZE; i++) {\n"
             "    sum += __shfl_sync(FULL_WARP, x, i);\n  }\n  return sum;"),),
        "each lane takes neighbouring keys": tuple(
            (loop, loop.replace("int k = lane; k < keys; k += WARP_SIZE",
                                "int k = lane * ((keys + 31) / 32);"
                                " k < min(keys, (lane + 1) * ((keys + 31) / 32)); k++"))
            for loop in (MAX_LOOP, SUM_LOOP, "for (int k = lane; k < keys; k += WARP_SIZE) {\n    s_row[k] =")),
    },
    "ex03": {
        "threads outside leave `scores_kernel` before the loop": (
            ("  float s = 0.0f;\n", "  if (first_q + row >= problem.q_len || first_k + lane >= problem.kv_len) return;\n"
             "  float s = 0.0f;\n"),),
        "`<=` in `element_or_zero()`": ((ELEMENT, ELEMENT.replace("<", "<=")),),
        "only the rows are compared": ((ELEMENT, ELEMENT.replace(" && column < columns", "")),),
        "only the columns are compared": ((ELEMENT, ELEMENT.replace("row < rows && ", "")),),
        "the element is read first, then replaced or multiplied by 0": (
            (ELEMENT, "const float x = to_float(matrix[row * row_stride + column]);\n"
             "  return row < rows && column < columns ? x : 0.0f;"),),
        "the last row and the last column are repeated": (
            (ELEMENT, "return to_float(matrix[min(row, rows - 1) * row_stride + min(column, columns - 1)]);"),),
        "S is stored without the condition for keys": (("if (q < problem.q_len && k < problem.kv_len)", "if (q < problem.q_len)"),),
        "S is stored without the condition for queries": (
            ("if (q < problem.q_len && k < problem.kv_len)", "if (k < problem.kv_len)"),),
        "O is stored without the condition for columns": (
            ("if (q < problem.q_len && d < problem.head_dim)", "if (q < problem.q_len)"),),
        "O is stored without the condition for queries": (
            ("if (q < problem.q_len && d < problem.head_dim)", "if (d < problem.head_dim)"),),
        "P is loaded without a condition, or up to `problem.kv_len` for all queries": (
            (LOAD_P, "p_shared[row][lane] = p_row[k + lane];"),),
        "`k + row < keys`": ((LOAD_P, LOAD_P.replace("k + lane < keys", "k + row < keys")),),
        "`if (k + lane < keys) p_shared[row][lane] = ...`, without 0": (
            (LOAD_P, "if (k + lane < keys) p_shared[row][lane] = p_row[k + lane];"),),
    },
    "ex04": {
        "`q + 1`": ((KEYS, KEYS.replace(" + problem.kv_len - problem.q_len", "")),),
        "`problem.q_len` and `problem.kv_len` exchanged": (
            (KEYS, KEYS.replace("problem.kv_len - problem.q_len", "problem.q_len - problem.kv_len")),),
        "one less": ((KEYS, KEYS.replace(" + 1 ", " ")),),
        "one more": ((KEYS, KEYS.replace(" + 1 ", " + 2 ")),),
        "at least one key": ((KEYS, KEYS.replace("q + problem.kv_len - problem.q_len + 1", "max(1, q + problem.kv_len - problem.q_len + 1)")),),
        "the causal rule for both masks": ((KEYS, "return q + problem.kv_len - problem.q_len + 1;"),),
        "`<=` in the mask": ((MASKED, MASKED.replace("<", "<=")),),
        "scores of masked keys become 0": ((MASKED, MASKED.replace("-INFINITY", "0.0f")),),
        "-1e30 instead of -INFINITY": ((MASKED, MASKED.replace("-INFINITY", "-1e30f")),),
        "`lane * KEYS + j` for the key": ((MASKED, MASKED.replace("lane + j * LANES", "lane * KEYS + j")),),
        "`key_end` from the first row of the tile": ((KEY_END, "keys_of_query(problem, first_q);\n"),),
        "`key_end` from the thread's own last row": (
            (KEY_END, "keys_of_query(problem, min(first_q + row + (ROWS - 1) * Tiles::ROW_STEP, problem.q_len - 1));\n"),),
        "`key_end` is `problem.kv_len`": ((KEY_END, "problem.kv_len;\n"),),
        "`key_end` from row `first_q + BLOCK_M - 1`, even past the last query": (
            (KEY_END, "keys_of_query(problem, first_q + BLOCK_M - 1);\n"),),
        "`return` if the tile attends to no key": ((KEY_END, KEY_END + "  if (key_end <= 0) return;\n"),),
    },
    "ex05": {
        "only `l` is rescaled": ((RESCALE_O, "o[c][x] *= 1.0f;"),),
        "only O is rescaled": (("  l *= rescale;\n", ""),),
        "the factor computed after `m = row_max`": (
            ("  const float rescale = exp2f(m - safe_max);\n  m = row_max;\n",
             "  m = row_max;\n  const float rescale = exp2f(m - safe_max);\n"),),
        "`m - row_max` in place of `m - safe_max`": (("exp2f(m - safe_max)", "exp2f(m - row_max)"),),
        "`safe_max - m`": (("exp2f(m - safe_max)", "exp2f(safe_max - m)"),),
        "`expf()` in place of `exp2f()`": (("exp2f(m - safe_max)", "expf(m - safe_max)"),),
        "O multiplied twice by the factor": ((RESCALE_O, "o[c][x] *= rescale * rescale;"),),
    },
    "ex06": {
        "only the lane's own part of l": (("lanes_reduce_sum<LANES>(l[i])", "l[i]"),),
        "the sum over 32 lanes": (("lanes_reduce_sum<LANES>(l[i])", "lanes_reduce_sum<32>(l[i])"),),
        "a sum by `__shfl_down_sync`": (
            ("const float sum = lanes_reduce_sum<LANES>(l[i]);",
             "float sum = l[i];\n    for (int x = LANES / 2; x > 0; x /= 2) {\n"
             "      sum += __shfl_down_sync(0xffffffffu, sum, x);\n    }"),),
        "`sum` instead of `1 / sum` as the factor": ((FACTOR, FACTOR.replace("1.0f / sum", "sum")),),
        "no case for the sum 0": ((FACTOR, "1.0f / sum"),),
        "LSE = 0 for rows without a key": ((LSE, f"sum == 0.0f ? 0.0f : {LSE}"),),
        "m is not multiplied by ln 2": ((LSE, "m[i] + logf(sum)"),),
        "m + log2(l)": ((LSE, "m[i] + log2f(sum)"),),
        "m is forgotten": ((LSE, "logf(sum)"),),
        "l instead of ln l": ((LSE, "m[i] * LN_2 + sum"),),
        "m is multiplied by the scale once more": ((LSE, "m[i] * problem.scale * LN_2 + logf(sum)"),),
        "`logf(exp2f(m) * l)`": ((LSE, "logf(exp2f(m[i]) * sum)"),),
        "the shuffle after `continue`": (
            ("    const float sum = lanes_reduce_sum<LANES>(l[i]);\n", ""),
            ("    const float factor =", "    const float sum = lanes_reduce_sum<LANES>(l[i]);\n    const float factor =")),
        "`1 / (sum + 1e-6)` instead of the case for 0": ((FACTOR, "1.0f / (sum + 1e-6f)"),),
    },
    "ex07": {
        "neighbouring keys: `lane * 4 + j`": ((ROW_K, "tiles.k[lane * 4 + j][d]"),),
        "neighbouring rows: `row * 4 + i`": ((ROW_Q, "tiles.q[row * 4 + i][d]"),),
        "`row + i`": ((ROW_Q, "tiles.q[row + i][d]"),),
        "`row + i * LANES`": ((ROW_Q, "tiles.q[row + i * LANES][d]"),),
        "`s[j][i]`": tuple((f"s[i][j] += q[i].{x}", f"s[j][i] += q[i].{x}") for x in "xyzw"),
        "entry by entry, one number at a time": multiplied(
            "for (int i = 0; i < ROWS; i++) for (int j = 0; j < Tiles::KEYS; j++)\n"
            f"  for (int d = 0; d < HEAD_DIM; d++) s[i][j] += {ROW_Q} * {ROW_K};"),
        "entry by entry, `float4`": multiplied(
            "for (int i = 0; i < ROWS; i++) for (int j = 0; j < Tiles::KEYS; j++)\n"
            f"  for (int d = 0; d < HEAD_DIM; d += 4) {{ {LOAD_Q} {LOAD_K} {FOUR} }}"),
        "Q is kept in registers, K is loaded for each row": multiplied(
            f"for (int d = 0; d < HEAD_DIM; d += 4) for (int i = 0; i < ROWS; i++) {{ {LOAD_Q}\n"
            f"  for (int j = 0; j < Tiles::KEYS; j++) {{ {LOAD_K} {FOUR} }} }}"),
        "4 x 4 entries at once, one column at a time": multiplied(
            "for (int d = 0; d < HEAD_DIM; d++) { float q[ROWS], k[Tiles::KEYS];\n"
            f"  for (int i = 0; i < ROWS; i++) q[i] = {ROW_Q};\n"
            f"  for (int j = 0; j < Tiles::KEYS; j++) k[j] = {ROW_K};\n"
            "  for (int i = 0; i < ROWS; i++) for (int j = 0; j < Tiles::KEYS; j++) s[i][j] += q[i] * k[j]; }"),
        "the fourth of four columns is forgotten": (("        s[i][j] += q[i].w * k[j].w;\n", ""),),
        "`d += 8`": (("d < HEAD_DIM; d += 4) {\n    float4", "d < HEAD_DIM; d += 8) {\n    float4"),),
        "`=` instead of `+=` for one of the four products": (("s[i][j] += q[i].y", "s[i][j] = q[i].y"),),
        "`d += 1` with `float4`": (("d < HEAD_DIM; d += 4) {\n    float4", "d < HEAD_DIM; d += 1) {\n    float4"),),
    },
    "ex08": {
        "`a[1]` and `a[2]` exchanged": (
            (f"load_row_pair(q + 8 * STRIDE), {A2}", "load_row_pair(q + 8), load_row_pair(q + 8 * STRIDE),"),),
        "`q + 2` for `q + 8`: the neighbouring pair instead of the one 8 columns away": (
            (A2, "load_row_pair(q + 2),"), (A3, "load_row_pair(q + 8 * STRIDE + 2)};")),
        "`d` forgotten": ((Q_WARP, "&q_warp[g * STRIDE + j]"),),
        "`lane % 4` for `j`": ((Q_WARP, "&q_warp[g * STRIDE + d + lane % 4]"),),
        "`HEAD_DIM` for `STRIDE`": ((Q_WARP, "&q_warp[g * HEAD_DIM + d + j]"),),
        "rows and columns exchanged (`j * STRIDE + g`)": ((Q_WARP, "&q_warp[j * STRIDE + d + g]"),),
        "the upper rows in `a[1]` and `a[3]`, too": (
            ("load_row_pair(q + 8 * STRIDE),", "load_row_pair(q),"), (A3, "load_row_pair(q + 8)};")),
        "`q + STRIDE` for `q + 8 * STRIDE`": (("q + 8 * STRIDE", "q + STRIDE"),),
        "72 for `STRIDE`": ((Q_WARP, "&q_warp[g * 72 + d + j]"), ("q + 8 * STRIDE", "q + 8 * 72")),
    },
    "ex09": {
        "`a[1]` and `a[2]` exchanged": ((P1, "@"), (P2, P1), ("@", P2)),
        "the halves of a register exchanged": (
            ("probs[n][0], probs[n][1]", "probs[n][1], probs[n][0]"),
            ("probs[n][2], probs[n][3]", "probs[n][3], probs[n][2]"),
            ("probs[n + 1][0], probs[n + 1][1]", "probs[n + 1][1], probs[n + 1][0]"),
            ("probs[n + 1][2], probs[n + 1][3]", "probs[n + 1][3], probs[n + 1][2]")),
        "tile `n` twice instead of `n` and `n + 1`": (("probs[n + 1]", "probs[n]"),),
        "the upper rows in `a[1]` and `a[3]`, too": ((P1, "pack<T>(probs[n][0], probs[n][1])"), (P3, P2)),
        "one element of each tile in a register: `pack(probs[n][c], probs[n + 1][c])`": (
            ("probs[n][0], probs[n][1]", "probs[n][0], probs[n + 1][0]"),
            (P1, "pack<T>(probs[n][1], probs[n + 1][1])"),
            (P2, "pack<T>(probs[n][2], probs[n + 1][2])"),
            (P3, "pack<T>(probs[n][3], probs[n + 1][3])")),
        "the bits of a float instead of `pack()`": (
            ("pack<T>(probs[n][0], probs[n][1])", "__float_as_uint(probs[n][0])"),
            (P1, "__float_as_uint(probs[n][2])"), (P2, "__float_as_uint(probs[n + 1][0])"),
            (P3, "__float_as_uint(probs[n + 1][2])")),
        "`pack<__half>` for `pack<T>`": (("pack<T>(probs", "pack<__half>(probs"),),
    },
    "ex10": {
        "the same query for `c` = 0 and `c` = 2 (`lane / 4`)": masked("first_q + lane / 4"),
        "`c / 2` for `c / 2 * 8`": masked("first_q + lane / 4 + c / 2"),
        "`first_q` for all": masked("first_q"),
        "`lane % 8` for `lane / 4`": masked("first_q + lane % 8 + c / 2 * 8"),
        "`lane % 4 * 2 + c` for the key": masked(key="first_key + 8 * n + lane % 4 * 2 + c"),
        "both keys of a pair treated as the first": masked(key="first_key + 8 * n + lane % 4 * 2"),
        "`lane % 4` for `lane % 4 * 2`": masked(key="first_key + 8 * n + lane % 4 + c % 2"),
        "row and key exchanged": masked("first_q + lane % 4 * 2 + c % 2",
                                        "first_key + 8 * n + lane / 4 + c / 2 * 8"),
        "`>` for `>=`": masked(condition="key > attended_keys(problem, query)"),
        "diagonal aligned to the top left, without `attended_keys()`": masked(
            condition="key >= problem.kv_len || (problem.mask == MASK_CAUSAL && key > query)"),
        "0 instead of -inf": masked(score="0.0f"),
    },
    "ex11": {
        "`row_max` begins with 0": (("float row_max = -INFINITY;", "float row_max = 0.0f;"),),
    },
    "ex25": {
        "`m` begins with 0, here and in `start_rows()`": (
            ("float m = -INFINITY,", "float m = 0.0f,"), ("running.m[row] = -INFINITY;", "running.m[row] = 0.0f;")),
    },
}
