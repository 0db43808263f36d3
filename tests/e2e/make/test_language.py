"""CUDA C that the CPU backend does not have ends in one line, which says what to use instead. The unit tests
of rewrite_launches have launches without template arguments, and files written on Windows."""

import pytest

from tests.lib.source_tree import SourceTree

pytestmark = pytest.mark.cpu_only("nvcc takes all of this")

HEADERS = {
    "cuda_pipeline.h": ("void f() { __pipeline_commit(); }", "cp_async_16() of device/ptx.cuh"),
    "cuda/pipeline": ("cuda::pipeline<int> p;", "cp_async_16() of device/ptx.cuh"),
    "cuda/barrier": ("cuda::barrier<int> b;", "mbarrier_*() of device/ptx_hopper.cuh"),
    "cuda/atomic": ("cuda::atomic<int> a;", "atomicAdd(), __threadfence()"),
    "cooperative_groups.h": ("namespace cg = cooperative_groups;", "__syncwarp(), __shfl_*_sync()"),
    "cub/cub.cuh": ("cub::WarpReduce<float> r;", "lanes_reduce_sum() of device/warp.cuh"),
    "cuda_fp8.h": ("__nv_fp8_e4m3 x;", "pack_e4m3() of device/ptx_hopper.cuh"),
}
REGISTERS = """#include "device/ptx_hopper.cuh"
static_assert(registers_suffice<%s>());
"""

CALLS = {
    "inline PTX": (
        '__global__ void k(int *a) { asm volatile("mov.u32 %0, %%laneid;" : "=r"(*a)); }',
        "between #ifdef __CUDACC__ and #else, and C++ behind the #else",
    ),
    "0 for a pointer": (
        "__global__ void k(float *a) { *a = 1; }\nvoid f() { k<<<1, 32>>>(0); }",
        "an argument does not convert to the kernel's parameter (write nullptr, not NULL or 0)",
    ),
    "an atomic of fp16": (
        "#include <cuda_fp16.h>\n__global__ void k(half *a) { atomicAdd(a, half(1)); }",
        "no atomicAdd() of 16-bit floats on the CPU backend: add to floats",
    ),
    "an atomic of pairs": (
        "#include <cuda_bf16.h>\n__global__ void k(__nv_bfloat162 *a) { atomicAdd(a, *a); }",
        "no atomicAdd() of 16-bit floats on the CPU backend: add to floats",
    ),
    "a shuffle of a struct": (
        "__global__ void k(float2 *a) { *a = __shfl_xor_sync(~0u, *a, 1); }",
        "shuffles take numbers of up to 8 bytes: shuffle each member",
    ),
    "registers that setmaxnreg does not take": (
        REGISTERS % "2, 20, 240",
        "setmaxnreg takes 24 to 256 registers, in steps of 8",
    ),
    "a release that is none": (
        REGISTERS % "3, 136, 128",
        "a warpgroup that releases registers would get more, or one that takes some fewer",
    ),
    "more registers than there are": (
        REGISTERS % "2, 40, 240",
        "more registers than the block starts with: setmaxnreg.inc would wait for ever",
    ),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> SourceTree:
    return SourceTree(tmp_path_factory.mktemp("language"), built="cpu")


def compile_errors(tree: SourceTree, source: str) -> list[str]:
    """The lines with `error:` when this step is compiled, which must fail."""
    file = tree.root / "steps/step98_mine.cu"
    file.write_text("#include <cuda_runtime.h>\n" + source)
    done = tree.make("BACKEND=cpu", "build/cpu/steps/step98_mine.o")
    file.unlink()
    assert done.returncode != 0
    return [line for line in done.stderr.splitlines() if "error:" in line]


@pytest.mark.parametrize("header", HEADERS)
def test_a_header_that_is_missing_says_what_to_use(tree: SourceTree, header: str) -> None:
    use, instead = HEADERS[header]
    (error,) = compile_errors(tree, f"#include <{header}>\n{use}\n")
    assert error.startswith(f"common/simt/include/{header}:2:")
    assert "on the CPU backend: call " + instead in error


@pytest.mark.parametrize("call", CALLS)
def test_a_call_that_does_not_compile_says_what_to_write(tree: SourceTree, call: str) -> None:
    source, instead = CALLS[call]
    (error,) = compile_errors(tree, source)
    assert error.endswith(instead)
