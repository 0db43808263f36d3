"""The limits of each step's memory accesses and overlap, compared with the record of a run.

The record is a line of --json of a run with --report. The limits are in the table beside the step,
in the section [limits]; a step without one has those of the step that it builds on:

two_ways   kinds of access to shared memory that may have conflicts of two ways where 32 lanes access
           parts of rows (D = 32, 96): two of 8 lanes that are served together access the same banks.
           Elsewhere, and of other kinds, no step has a conflict.
sectors    the most sectors, of 32 bytes, in a request to global memory, by kind of access
overlap    the least percentage of mma with a cp.async in flight where all tiles are whole: `full`
           without a mask, less the share of `idle_tiles`; `masked` with one. Of a backward step,
           without a mask: `queries` of all mma in a loop over tiles of queries, and `keys` in one
           over tiles of `key_tile` keys, but for those of the last tile

A limit may depend on the head dimension: {96 = 26, other = 24}.
"""

from tests.lib.steps import inherited


def for_head_dim(limit: object, head_dim: int) -> object:
    by_head_dim = isinstance(limit, dict) and "other" in limit
    return limit.get(str(head_dim), limit["other"]) if by_head_dim else limit


def most_ways(limits: dict, head_dim: int) -> dict[str, int]:
    """The most ways of a bank conflict, by kind of access to shared memory. 1 is no conflict: a
    request with a conflict of n ways takes n wavefronts."""
    two_ways = limits.get("two_ways", ()) if head_dim % 64 == 32 else ()
    return {kind: 1 + (kind in two_ways) for kind in ("shared_load", "shared_store", "ldmatrix", "copy_shared")}


def most_sectors(limits: dict, head_dim: int) -> dict[str, int]:
    """The most sectors of a request, by kind of access to global memory."""
    return {kind: for_head_dim(most, head_dim) for kind, most in limits["sectors"].items()}


def least_overlap(limits: dict, record: dict) -> float:
    """The least percentage of mma with a cp.async in flight."""
    overlap = for_head_dim(limits.get("overlap"), record["head_dim"])
    keys, block_n = record["seqlen_kv"], record["block_n"]
    if not overlap or keys % block_n != 0:
        return 0
    if "queries" in overlap:
        rows, block_m = record["seqlen"], record["block_m"]
        if record["mask"] != "full" or rows % block_m != 0:
            return 0
        return overlap["queries"] * (1 - block_m / rows) + overlap.get("keys", 0) * (
            1 - overlap.get("key_tile", 0) / keys
        )
    if record["mask"] != "full":
        return overlap.get("masked", 0)
    return overlap["full"] + overlap["idle_tiles"] * (-50 * block_n // keys)


def exceeded(record: dict) -> list[str]:
    """The limits that are exceeded, in words."""
    limits, head_dim = inherited(record["step"], "limits"), record["head_dim"]
    found = [
        f"{kind}: {value} {what}, at most {most}"
        for table, field, what in (
            (most_ways, "most_ways", "ways of a bank conflict"),
            (most_sectors, "most_sectors", "sectors in a request"),
        )
        for kind, most in table(limits, head_dim).items()
        if (value := record[f"lab_{kind}_{field}"]) > most
    ]
    mma, under = record["lab_mma"], record["lab_mma_under_copy"]
    usual = record["mask"] == "full" and record["input"] == "normal" and record["scale"] < 1.01 * head_dim**-0.5
    if mma > 0 and usual and record["lab_wgmma"] > 0:
        found.append(f"{mma} mma: S is computed again, which such scores never need")
    least = least_overlap(limits, record)
    if 100 * under < least * mma:
        found.append(f"{100 * under / mma:.1f} % of the mma with a copy in flight, at least {least} %")
    return found
