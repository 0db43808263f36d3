"""The limits of each step's memory accesses and overlap, compared with the record of a run.

The record is a line of --json of a run with --report. A bank conflict of n ways makes a request
take n wavefronts; a sector is 32 bytes.
"""

from tests.lib.configs import HOPPER_STEPS

# 16 bytes per lane. Where 32 lanes access parts of rows (D = 32, 96), two of 8 lanes that are
# served together may access the same banks.
CHUNKS = {"step02b": ("shared_store",), "step02c": ("shared_store", "shared_load"),
          **dict.fromkeys(HOPPER_STEPS, ("shared_load",))} | dict.fromkeys(
    ("step03", "step04", "step05"), ("copy_shared", "shared_load"))


def most_ways(step: str, head_dim: int) -> dict[str, int]:
    """The most ways of a bank conflict, by kind of access to shared memory. 1 is no conflict."""
    kinds = dict.fromkeys(("shared_load", "shared_store", "ldmatrix", "copy_shared"), 1)
    return kinds | dict.fromkeys(CHUNKS.get(step, ()), 2 if head_dim % 64 == 32 else 1)


def most_sectors(step: str, head_dim: int) -> dict[str, int]:
    """The most sectors of a request, by kind of access to global memory."""
    if step == "step01":  # 32 floats are 4 sectors, 5 where a row begins within one
        return {"global_load": 5, "global_store": 5, "copy_global": 0}
    if step == "step02":  # 8 bytes per lane; more than 8 sectors where rows begin within one
        return {"global_load": 9, "global_store": 12, "copy_global": 0}
    if step == "step02b":  # O in 4 bytes per lane: 8 rows
        return {"global_load": 16, "global_store": 8, "copy_global": 0}
    if step == "step06":  # swizzled rows are as aligned as those in global memory
        return {"global_load": 2, "global_store": 16, "copy_global": 16}
    if step == "step02c" or step in HOPPER_STEPS:  # 16 bytes per lane, or fewer
        return {"global_load": 16, "global_store": 16,
                "copy_global": 1 if step == "step11" else 0}  # a plan, by one thread
    # cp.async requests each sector of a row twice if the row is 16 bytes off alignment in shared
    # memory. Of the rows that 32 lanes copy this is every second one; at D = 256 the lanes copy one
    # row, which is aligned or not. Loads are those of tile lists and bit masks.
    return {"global_load": 2 if step == "step05" else 0, "global_store": 16,
            "copy_global": {96: 26, 256: 32}.get(head_dim, 24)}


def least_overlap(record: dict) -> int:
    """The least percentage of mma with a cp.async in flight, where all tiles are whole."""
    step, keys, block_n = record["step"], record["seqlen_kv"], record["block_n"]
    if step not in ("step04", "step05", "step06") or keys % block_n != 0:
        return 0
    of_one_tile = -(-50 * block_n // keys)
    if step == "step06":
        if record["mask"] != "full":
            return 0
        # At D = 256 all but the first Q K^T and the last P V. Else P V of all tiles but the last.
        return 100 - 2 * of_one_tile if record["head_dim"] == 256 else 50 - of_one_tile
    # Q K^T runs while V is copied, and P V while the next K is: all of them except the last.
    return 100 - of_one_tile if record["mask"] == "full" else 50


def exceeded(record: dict) -> list[str]:
    """The limits that are exceeded, in words."""
    step, head_dim = record["step"], record["head_dim"]
    found = [f"{kind}: {value} {what}, at most {most}"
             for table, field, what in ((most_ways, "most_ways", "ways of a bank conflict"),
                                        (most_sectors, "most_sectors", "sectors in a request"))
             for kind, most in table(step, head_dim).items()
             if (value := record[f"lab_{kind}_{field}"]) > most]
    mma, under, least = record["lab_mma"], record["lab_mma_under_copy"], least_overlap(record)
    if 100 * under < least * mma:
        found.append(f"{100 * under / mma:.1f} % of the mma with a copy in flight, at least {least} %")
    return found
