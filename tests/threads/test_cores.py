"""What a process is given: affinity, a container's quota, the variables; each from files and an environment made up."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minibert.threads import computing

REAL_QUOTA = computing.quota
NO_LIMIT = REAL_QUOTA("/no/such/root")
OPENBLAS, OMP = computing.THEIRS


@pytest.fixture(autouse=True)
def eight_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (computing.OURS, *computing.THEIRS):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)), raising=False)
    monkeypatch.setattr(computing, "quota", lambda: NO_LIMIT)


@pytest.mark.parametrize(
    ("variables", "found"),
    [
        ({}, 8), ({OMP: "3"}, 3), ({OMP: "3", OPENBLAS: "2"}, 2), ({OMP: "2", OPENBLAS: "3"}, 3), ({OMP: "4,2"}, 4),
        ({OMP: "64"}, 8), ({OMP: ""}, 8), ({OMP: "0"}, 8), ({OMP: "all"}, 8),
        ({OMP: "9" * 5000}, 8),  # Python makes no integer of it
        ({OMP: "2", computing.OURS: "5"}, 5), ({computing.OURS: "12"}, 12), ({computing.OURS: ""}, 8),
    ],
)  # fmt: skip
def test_variables(variables: dict[str, str], found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert computing.cores() == found


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.5", " ", "²", "4,2", "9" * 5000])
def test_a_variable_of_ours_that_is_no_number(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(computing.OURS, value)
    with pytest.raises(ValueError, match="MINIBERT_THREADS"):
        computing.cores()


def test_affinity_and_quota(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "quota", lambda: 2)
    assert (computing.cores(), computing.blas_takes()) == (2, 8)  # BLAS does not know of a quota
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {5}, raising=False)
    assert (computing.cores(), computing.blas_takes()) == (1, 1)
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: None)
    assert computing.cores() == 1


V1 = "12:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n1:name=systemd:/docker/abc\n"
V2 = "0::/user.slice/app.scope\n"
V1_QUOTA, V1_PERIOD, OWN = "cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us", "cpu/docker/abc"


@pytest.mark.parametrize(
    ("group", "files", "found"),
    [
        ("", {}, NO_LIMIT), ("0::/\n", {"cpu.max": "100000 100000\n"}, 1), ("0::/\n", {"cpu.max": "150000 100000"}, 2),
        ("0::/\n", {"cpu.max": "20000 100000\n"}, 1), ("0::/\n", {"cpu.max": "max 100000\n"}, NO_LIMIT),
        ("0::/\n", {"cpu.max": ""}, NO_LIMIT), ("0::/\n", {"cpu.max": "9" * 5000 + " 100000\n"}, NO_LIMIT),
        ("0::/\n", {"cpu.max": "-100000 100000\n"}, NO_LIMIT), ("0::/\n", {"cpu.max/a": "a folder"}, NO_LIMIT),
        (V2, {"user.slice/app.scope/cpu.max": "400000 100000"}, 4),
        # a group has the quota of those above it
        (V2, {"user.slice/app.scope/cpu.max": "max 100000", "user.slice/cpu.max": "300000 100000"}, 3),
        ("0::/été\n", {"été/cpu.max": "200000 100000\n"}, 2), ("0::/a\0b\n", {"cpu.max": "200000 100000\n"}, 2),
        ("nonsense\n\n0\n0::\n", {"cpu.max": "50000 0\n"}, NO_LIMIT),
        (V1, {f"{OWN}/cpu.cfs_quota_us": "250000\n", f"{OWN}/cpu.cfs_period_us": "100000\n"}, 3),
        (V1, {V1_QUOTA: "100000\n", V1_PERIOD: "100000\n"}, 1),  # in a container the group's name is the host's
        (V1, {V1_QUOTA: "-1\n", V1_PERIOD: "100000\n"}, NO_LIMIT),
    ],
)  # fmt: skip
def test_quota(group: str, files: dict[str, str], found: int, tmp_path: Path) -> None:
    write_groups(tmp_path, group, files)
    for number in range(2):  # the first is kept, for this root alone
        assert REAL_QUOTA(str(tmp_path)) == found, number


def write_groups(root: Path, group: str, files: dict[str, str]) -> None:
    written = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    for name, text in {**written, "proc/self/cgroup": group}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    ("group", "files", "found"),
    [
        ("", {}, None),
        (V2, {"user.slice/app.scope/memory.max": "1000000", "user.slice/memory.max": "900000\n"}, 900_000),
        (V2, {"user.slice/app.scope/memory.max": "max\n"}, None),
        (V1, {"memory/docker/abc/memory.limit_in_bytes": "700000"}, 700_000),
        (V1, {"memory/memory.limit_in_bytes": "9223372036854771712"}, None),
    ],
)
def test_memory(group: str, files: dict[str, str], found: int | None, tmp_path: Path) -> None:
    write_groups(tmp_path, group, files)
    assert computing.memory(str(tmp_path)) == (found or computing.memory("/no/such/root"))


@pytest.mark.parametrize(
    ("text", "found"),
    [("0.20 0.18 0.12 3/80 11206\n", 3), ("0.00 0.00 0.00 0/0 0", 0), ("", 0), ("1 2 3", 0), ("a b c d e", 0)],
)
def test_who_wants_a_core(text: str, found: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(computing, "_read", lambda path: {"/proc/loadavg": text}[path])
    assert computing.running() == found
