"""The library compiles without spills wherever nvcc is, and a slow build is a failed one."""

import pytest

from engine.ops.hopper import compiler

GOOD = (
    "    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\nptxas info    : Used 168 registers"
)


def test_compiles_without_spills(library_path):
    assert library_path.stat().st_size > 100_000


def test_a_library_that_is_there_is_taken(library_path, monkeypatch):
    monkeypatch.setattr(compiler, "_compile", None)  # would fail if called
    try:
        compiler.find_nvcc()
    except compiler.NvccMissingError as missing:
        pytest.skip(str(missing))
    if library_path.stem != f"hopper-{compiler.digest(compiler.find_nvcc())}":
        pytest.skip("the library is from another nvcc")
    assert compiler.build_library(library_path.parent) == (library_path, "")


@pytest.mark.parametrize(
    "bad",
    [
        "    24 bytes stack frame, 32 bytes spill stores, 44 bytes spill loads",
        "ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored",
        "ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
    ],
)
def test_slow_code_is_a_failed_build(bad):
    compiler.check_report(GOOD)
    with pytest.raises(compiler.CompileError, match="slow code"):
        compiler.check_report(f"{GOOD}\n{bad}\n{GOOD}")


def test_a_missing_compiler_says_what_to_install(monkeypatch):
    monkeypatch.setenv("NVCC", "/nowhere/nvcc")
    monkeypatch.setattr(compiler.sysconfig, "get_paths", lambda: {"purelib": "/nowhere"})
    with pytest.raises(compiler.NvccMissingError, match="nvidia-cuda-nvcc"):
        compiler.find_nvcc()
