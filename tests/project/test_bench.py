"""The benchmark: its table of contenders, its ratios, and whose minibert a contender imports. Nothing is timed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import Patch, Printed

BENCH = Path(__file__).resolve().parents[2] / "scripts" / "bench"
sys.path.append(str(BENCH.parent))

from bench import __main__ as command  # noqa: E402
from bench import contenders, machine, models  # noqa: E402
from bench.children import NEEDS, Contender  # noqa: E402
from bench.measure import Limit, compare, in_turn, least, most, wide  # noqa: E402
from bench.names import ALONE, BEFORE, INSIDE, NUMPY, OURS, PRODUCTS, ROWS, WAYS  # noqa: E402
from bench.sections import SECTIONS, Calls, Function, Starts, differences  # noqa: E402

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmark reads /proc")
OF_OURS = {ALONE, INSIDE, ROWS, PRODUCTS, NUMPY, models.MINILM, "600 texts"}


def test_every_part_names_contenders_models_and_functions_that_are_there() -> None:
    for part in (part for parts in SECTIONS.values() for part in parts):
        if isinstance(part, Function):
            file, _, function = part.name.partition(".")
            assert f"def {function}(settings: Settings)" in (BENCH / f"{file}.py").read_text("utf-8")
        elif isinstance(part, Starts):
            assert OURS in part.codes and set(part.others) <= set(part.codes)
        else:
            assert callable(getattr(contenders, part.on)) and part.model in {models.MINILM, "static", *models.MADE_UP}
            peers = {way for _, limits in part.cases.values() for peer in limits for way in WAYS.get(peer, (peer,))}
            strangers = {peer for peer in peers if peer not in OF_OURS and not peer.startswith(f"{OURS}, ")}
            assert {peer.replace(",", "").partition(" ")[0] for peer in strangers} <= set(NEEDS)
            for peer in strangers:  # a peer that is measured as minibert would be exactly as fast
                with pytest.raises(RuntimeError, match=f"found '{peer}'"):
                    contenders.ours(peer, "")


def test_one_core_has_the_limits_of_its_texts() -> None:
    (part,) = SECTIONS["one-core"]
    assert isinstance(part, Calls) and part.cores == 1
    assert [case for case, _ in part.cases.values()] == [(1,), (16,), (200,), (1, 1, 7)]


@pytest.mark.parametrize(
    ("limit", "unit", "ratio", "met"),
    [
        (None, "s", "**3.00** x as fast", None), (least(2.9), "s", "**3.00** x as fast", True),
        (least(3.1), "s", "**3.00** x as fast", False), (most(0.4), "s", "**0.33** x the time", True),
        (most(0.3), "s", "**0.33** x the time", False), (most(2000, "ms"), "s", "**0.33** x the time", True),
        (most(1900, "ms"), "s", "**0.33** x the time", False),
        (Limit("<=", 0.4), "B", "**0.33** x the memory", True),
    ],
)  # fmt: skip
def test_a_ratio_is_that_of_each_round(limit: Limit | None, unit: str, ratio: str, met: bool | None) -> None:
    """Not that of the two medians, which is 4; the third round's is 6."""
    row = compare("a call", [1, 2, 4], [3, 8, 8 * 1.5], "a peer", limit, unit)
    assert (row.ratio, row.met) == (ratio, met) and row.limit == ("" if limit is None else str(limit))


def test_a_limit_may_be_that_of_kernels_for_avx512() -> None:
    assert str(wide(2.4, aim=3, other=1.3).on("SkylakeX")) == "≥ 2.4, aim 3"
    assert str(wide(2.4, aim=3, other=1.3).on("Haswell")) == "≥ 1.3"
    assert wide(2.4).on("Haswell") is None and least(2).on("Haswell") == least(2)


def test_each_second_round_goes_back_to_front_and_the_first_does_not_count(monkeypatch: Patch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)
    asked: list[str] = []
    found = in_turn({name: lambda name=name: asked.append(name) or len(asked) for name in "ab"}, 2, start=1)
    assert (asked, found) == (list("abbaab"), {"a": [4, 5], "b": [3, 6]})


def test_only_variables_that_change_timings_are_named(monkeypatch: Patch) -> None:
    others = {name: text for name, text in os.environ.items() if name not in machine.variables()}
    changing = {"ATEN_CPU_CAPABILITY": "default", "MINIBERT_THREADS": "1", "OPENBLAS_CORETYPE": "Haswell"}
    monkeypatch.setattr(os, "environ", others | changing | {"MINIBERT_MODEL": "a folder"})
    assert machine.variables() == changing
    assert "`ATEN_CPU_CAPABILITY=default`, `MINIBERT_THREADS=1`, `OPENBLAS_CORETYPE=Haswell`" in machine.head([], "x")


def test_other_work_is_unknown_while_the_clock_has_not_ticked(monkeypatch: Patch) -> None:
    times = iter([(1.0, 1.0, 4.0), (1.0, 1.0, 4.0), (4.0, 1.0, 4.0), (5.0, 1.5, 6.0)])
    monkeypatch.setattr(machine.OtherWork, "_now", staticmethod(lambda: next(times)))
    assert machine.OtherWork().share() is None
    assert machine.OtherWork().share() == 0.25
    assert "do not quote" in machine.foot("cold", "x", 0.25) and "do not quote" not in machine.foot("cold", "x", 0.05)


def test_without_the_model_it_names_the_folder_and_what_to_do(
    tmp_path: Path, monkeypatch: Patch, capsys: Printed
) -> None:
    monkeypatch.setenv("MINIBERT_MODEL", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["bench", "cold"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert f"{tmp_path}: install it by sh scripts/demo" in capsys.readouterr().err


def test_a_contender_imports_minibert_from_the_folder_beside(tmp_path: Path, minilm: Path, monkeypatch: Patch) -> None:
    """Wrong: it measures this state twice."""
    monkeypatch.setenv("MINIBERT_MODEL", str(minilm))
    (tmp_path / "minibert").mkdir()
    lines = "class load_encoder:", "  def __init__(self, folder): pass", "  encode = staticmethod(lambda text: [7.0])"
    (tmp_path / "minibert" / "__init__.py").write_text("\n".join(lines))
    with Contender("contenders.texts", BEFORE, minilm, "", beside=tmp_path) as each:
        each.ask(2, save=str(tmp_path / "vector.npy"))
        assert np.load(tmp_path / "vector.npy") == [7.0]
        assert differences((2,), {OURS: each, BEFORE: each}) == {BEFORE: 0.0}
    with pytest.raises(RuntimeError, match="a contender failed"):
        Contender("contenders.texts", BEFORE, minilm, "", beside=tmp_path / "minibert")
