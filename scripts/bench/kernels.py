"""The kernel of NumPy's BLAS that is measured, and the variables of the environment that change timings.

Only the standard library: see measure.py.
"""

from __future__ import annotations

import os
from pathlib import Path

# how names begin: of OpenBLAS, MKL and OpenMP, of torch and its oneDNN, of NumPy's own loops, of tokenizers, and ours
BEGINNINGS = (
    "OPENBLAS_", "GOTO_", "MKL_", "OMP_", "KMP_", "ATEN_", "ONEDNN_", "DNNL_", "NPY_", "RAYON_", "TOKENIZERS_",
    "MINIBERT_THREADS",
)  # fmt: skip
OWN = "own"  # the one that the processor takes by itself
FLAGS = {OWN: "", "SkylakeX": "avx512f", "Haswell": "avx2"}  # what a processor must have for a kernel
# What else is held to the kernel's instructions. ONNX Runtime has no such switch
TORCH = {"Haswell": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}}
AVX512 = ("SkylakeX", "Cooperlake", "Sapphirerapids")  # kernels


def variables() -> dict[str, str]:
    """Those that are set here."""
    return {name: text for name, text in sorted(os.environ.items()) if name.startswith(BEGINNINGS)}


def cannot(kernel: str) -> str:
    """Say why the processor cannot run a kernel, with which a process would end in the middle; "" where it can."""
    if FLAGS[kernel] in ("", *cpuinfo("flags").split()):
        return ""
    return (
        f"the kernel {kernel} needs a processor with {FLAGS[kernel]}, which the flags in /proc/cpuinfo do not name; "
        f"leave it out here"
    )


def hold_to(kernel: str) -> None:
    """Have all processes that start from now on use this kernel, and set no other variable that changes timings."""
    for name in variables():
        del os.environ[name]
    if kernel != OWN:
        os.environ.update({"OPENBLAS_CORETYPE": kernel} | TORCH.get(kernel, {}))


def beyond(kernel: str) -> bool:
    """Whether the processor has AVX-512 and this kernel leaves it alone: then ONNX Runtime has it for itself."""
    return kernel not in AVX512 and FLAGS["SkylakeX"] in cpuinfo("flags").split()


def cpuinfo(key: str) -> str:
    """What /proc/cpuinfo says of the first core; "" where there is no such line."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key), "")
