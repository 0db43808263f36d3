"""The steps of the gallery, called from Python.

With NumPy, on the simulator of a GPU:

    o, lse = attention_steps.step("04")(q, k, v, mask="causal")
    report = attention_steps.step("04").lab(q, k, v)

With PyTorch, on a GPU: attention_steps.scaled_dot_product_attention(q, k, v, is_causal=True). In a notebook:
%load_ext attention_steps, then cells that begin with %%step.
"""

from importlib import import_module

from .gallery import BuildError, StepError, names
from .report import Lab, Line, Problem
from .steps import Step, build, step

# What needs PyTorch is imported when it is first used.
_LAZY = "attention", "blocks_of", "decode", "decode_schedule", "document_spans"
_LAZY += "scaled_dot_product_attention", "use_in_transformers"

__all__ = ["BuildError", "Lab", "Line", "Problem", "Step", "StepError", "build", "names", "step", *_LAZY]


def __getattr__(name: str) -> object:
    if name in _LAZY:
        globals()[name] = getattr(import_module(".torch_ops", __name__), name)
        return globals()[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def load_ipython_extension(shell: object) -> None:
    """%load_ext attention_steps"""
    import_module(".magic", __name__).load(shell)
