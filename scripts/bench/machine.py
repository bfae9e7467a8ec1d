"""Describe a run: the command, the commit, the machine, the kernel of NumPy's BLAS, versions and variables.

Only the standard library: see children.process.
"""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUSY = 0.1  # from this share of other programs on, figures mean little
PACKAGES = (
    "numpy", "tokenizers", "safetensors", "torch", "transformers", "sentence-transformers", "onnxruntime", "model2vec",
)  # fmt: skip
# beginnings of the names of variables that change timings: OpenBLAS, MKL, OpenMP, torch and its oneDNN, NumPy's loops,
# tokenizers, and minibert
BEGINNINGS = (
    "OPENBLAS_", "GOTO_", "MKL_", "OMP_", "KMP_", "ATEN_", "ONEDNN_", "DNNL_", "NPY_", "RAYON_", "TOKENIZERS_",
    "MINIBERT_THREADS",
)  # fmt: skip


def installed(name: str) -> bool:
    """Return whether a distribution is installed, without an import."""
    try:
        version(name)
    except PackageNotFoundError:
        return False
    return True


def variables() -> dict[str, str]:
    """Return the variables of the environment that change timings."""
    return {name: text for name, text in sorted(os.environ.items()) if name.startswith(BEGINNINGS)}


def head(arguments: Sequence[str], kernel: str) -> str:
    """Return the lines above a run's tables. kernel: of NumPy's BLAS."""
    names = {"Python": platform.python_version()} | {name: version(name) for name in PACKAGES if installed(name)}
    given = ", ".join(f"`{name}={text}`" for name, text in variables().items())
    return "\n".join([
        f"- command: `{' '.join(['python scripts/bench', *arguments])}`",
        f"- commit: {commit()}",
        f"- machine: {machine()}",
        f"- kernel of NumPy's BLAS: {kernel}",
        f"- variables that change timings: {given or 'none'}",
        f"- versions: {', '.join(f'{name} {number}' for name, number in names.items())}",
        "",
    ])  # fmt: skip


def foot(section: str, kernel: str, other: float | None) -> str:
    """Return the line below a table. other: the share of the processor that other programs used meanwhile."""
    line = f"`python scripts/bench {section}`, commit {commit()}, {cpuinfo('model name')}, kernel {kernel}."
    if other is not None:
        line += f" Other work took {other:.0%} of the processor."
        line += " **The machine was busy: do not quote these figures.**" * (other > BUSY)
    return line + "\n"


def commit() -> str:
    """Return the commit of this tree, and whether files differ from it."""
    git = ["git", "-C", str(ROOT)]
    found = subprocess.run([*git, "rev-parse", "--short=10", "HEAD"], capture_output=True, text=True, check=False)
    if found.returncode:
        return "unknown"
    changed = subprocess.check_output([*git, "status", "--porcelain", "minibert", "scripts/bench"])
    return found.stdout.strip() + " with changes" * bool(changed)


def machine() -> str:
    caches = {}
    for cache in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        if (cache / "type").read_text().strip() != "Instruction":
            caches["L" + (cache / "level").read_text().strip()] = (cache / "size").read_text().strip()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return ", ".join([
        cpuinfo("model name"), f"{len(os.sched_getaffinity(0))} cores", *(" ".join(each) for each in caches.items()),
        f"{memory:.0f} GiB", f"{platform.system()} {platform.release().split('-')[0]}",
    ])  # fmt: skip


def cpuinfo(key: str) -> str:
    """Return a value of /proc/cpuinfo for the first core, or the kind of machine without such a line."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    found = (line.partition(":")[2].strip() for line in lines if line.partition(":")[0].strip() == key)
    return next(found, platform.machine())


class OtherWork:
    """The share of the processor that other programs use: 0.25 is a quarter of all cores' time.

    Two threads that wait for each other suffer most from other programs, so a busy machine flatters a contender with
    one thread.
    """

    def __init__(self) -> None:
        self._before = self._now()

    def share(self) -> float | None:
        """Return the share since this object was made, or None if the kernel's clock has not ticked since."""
        everyone, own, total = (after - before for after, before in zip(self._now(), self._before, strict=True))
        return max(0.0, (everyone - own) / total) if total else None

    @staticmethod
    def _now() -> tuple[float, float, float]:
        """Return seconds of all cores: busy, busy with this process and its children, and in all."""
        first = Path("/proc/stat").read_text(encoding="utf-8").splitlines()[0]
        spent = [int(number) / os.sysconf("SC_CLK_TCK") for number in first.split()[1:9]]
        idle = spent[3] + spent[4]  # idle, and waiting for the disk
        return sum(spent) - idle, sum(os.times()[:4]), sum(spent)
