"""The files of `make activations`, which itself proves that the models are run right."""

from pathlib import Path

import numpy as np

from tests.activations import fixtures
from tests.activations.layers import Activations, attend

rng = np.random.default_rng(6)


def activations(length: int = 20) -> Activations:
    q, k, v = (rng.normal(size=(heads, length, 32)) for heads in (6, 2, 2))
    return attend(q, k, v, np.tri(length, dtype=bool), np.arange(6) // 3)


def test_stored_files_are_compared(tmp_path: Path) -> None:
    fresh, kept = tmp_path / "fresh", tmp_path / "kept"
    for name in ("one", "two"):
        fixtures.write(fresh / name, activations(), {"mask": "causal"})
    (kept / "texts").mkdir(parents=True)
    (kept / "texts" / "poem.txt").write_text("a\n")
    fixtures.keep(fresh, kept, ["one"])
    assert fixtures.changed_files(kept) == []
    assert fixtures.differences(fresh, kept, ["one"]) == []
    assert not (kept / "two").exists()
    np.save(fresh / "one" / "v.npy", np.zeros(3))
    assert fixtures.differences(fresh, kept, ["one"]) == ["one/v.npy"]
    fixtures.keep(fresh, kept, ["one"])
    assert fixtures.differences(fresh, kept, ["one"]) == []
    (kept / "one" / "o_rows.npy").unlink()
    (kept / "one" / "more.npy").write_text("")
    assert fixtures.differences(fresh, kept, ["one"]) == ["one/more.npy", "one/o_rows.npy"]
    assert len(fixtures.differences(fresh, kept, ["two"])) == 6
