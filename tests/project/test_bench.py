"""The benchmark: which kernel and variables a table is of, and whose minibert a contender imports. Nothing is timed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.append(str(BENCH.parent))

from bench import kernels  # noqa: E402
from bench.bits import BEFORE  # noqa: E402
from bench.children import Contender, child  # noqa: E402

CHANGING = {
    "OPENBLAS_L2_SIZE": "512",
    "OMP_NUM_THREADS": "1",
    "MINIBERT_THREADS": "1",
    "ATEN_CPU_CAPABILITY": "default",
}
AVX2 = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "OPENBLAS_CORETYPE": "Haswell",
}


@pytest.fixture
def variables(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set these variables and no others that change timings; what a test sets beyond them ends with it."""
    others = {name: text for name, text in os.environ.items() if name not in kernels.variables()}
    monkeypatch.setattr(os, "environ", others | CHANGING | {"MINIBERT_MODEL": "a folder"})


@pytest.mark.usefixtures("variables")
@pytest.mark.parametrize(
    ("kernel", "then"), [("own", {}), ("Haswell", AVX2), ("SkylakeX", {"OPENBLAS_CORETYPE": "SkylakeX"})]
)
def test_a_kernel_has_its_own_variables_and_no_other_that_changes_timings(kernel: str, then: dict[str, str]) -> None:
    before = dict(os.environ)
    assert kernels.variables() == CHANGING
    kernels.hold_to(kernel)
    assert kernels.variables() == then
    assert dict(os.environ) == {name: before[name] for name in before.keys() - CHANGING.keys()} | then


@pytest.mark.parametrize("kernel", ["Haswell", "SkylakeX"])
def test_children_have_the_kernel_that_is_asked(variables: None, kernel: str) -> None:
    if why := kernels.cannot(kernel):
        pytest.skip(why)
    kernels.hold_to(kernel)
    assert child("children.kernel") == kernel


def test_a_contender_imports_minibert_from_the_folder_beside(tmp_path: Path, minilm: Path) -> None:
    """Wrong: it measures this state twice."""
    (tmp_path / "minibert").mkdir()
    lines = "class load_encoder:", "  def __init__(self, folder): pass", "  encode = staticmethod(lambda text: [7.0])"
    (tmp_path / "minibert" / "__init__.py").write_text("\n".join(lines))
    with Contender("bits.on_lengths", BEFORE, minilm, beside=tmp_path) as each:
        each.ask(1, 2, 2, save=str(tmp_path / "vector.npy"))
    assert np.load(tmp_path / "vector.npy") == [7.0]
    with (
        pytest.raises(RuntimeError, match="a contender failed"),
        Contender("bits.on_lengths", BEFORE, minilm, beside=tmp_path / "minibert"),
    ):
        pass
