"""One wheel is shipped for every machine with the package and its licence, and the types of its methods."""

from __future__ import annotations

import configparser
import email
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from needed import need

import minibert

ROOT = Path(__file__).resolve().parents[2]
VERSION = minibert.__version__
INFO = f"minibert_numpy-{VERSION}.dist-info/"
METADATA = {
    "Name": ["minibert-numpy"], "Version": [VERSION], "Requires-Python": [">=3.10"], "License-File": ["LICENSE"],
    "License-Expression": ["Apache-2.0"], "Description-Content-Type": ["text/markdown"],
}  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, tmp_path_factory.mktemp("dist"))


def build(project: Path, folder: Path, *options: str) -> Path:
    need("hatchling", "test")
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder), *options]
    result = subprocess.run(command, cwd=project, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> dict[str, bytes]:
    """The wheel's files: path inside it -> content."""
    (file,) = built.glob("*.whl")
    assert file.name == f"minibert_numpy-{VERSION}-py3-none-any.whl"
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel: dict[str, bytes]) -> email.message.Message:
    return email.message_from_bytes(wheel[INFO + "METADATA"])


def test_the_archives_hold_the_package_and_little_else(wheel: dict[str, bytes], built: Path) -> None:
    tags = email.message_from_bytes(wheel[INFO + "WHEEL"])
    assert (tags["Root-Is-Purelib"], tags.get_all("Tag")) == ("true", ["py3-none-any"])
    source = [path.relative_to(ROOT) for path in (ROOT / "minibert").rglob("*") if path.is_file()]
    caches = ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache")
    package = {path.as_posix() for path in source if not set(caches) & set(path.parts)}
    about = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")
    assert set(wheel) == package | {INFO + name for name in about}
    assert {"minibert/__init__.py", "minibert/equations/input_layer.py", "minibert/py.typed"} <= package
    assert wheel[INFO + "licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()
    with tarfile.open(built / f"minibert_numpy-{VERSION}.tar.gz") as archive:
        names = {name.removeprefix(f"minibert_numpy-{VERSION}/") for name in archive.getnames()}
    assert {name for name in wheel if name.startswith("minibert/")} <= names
    top = {name.split("/")[0] for name in names}
    allowed = {"minibert", "tests", "scripts", "pyproject.toml", "README.md", "LICENSE", ".gitignore", "PKG-INFO"}
    assert top <= allowed, f"does not belong there: {top - allowed}"
    assert not [name for name in {*names, *wheel} if name.endswith(".pyc") or "__pycache__" in name]
    entries = configparser.ConfigParser()
    entries.read_string(wheel[INFO + "entry_points.txt"].decode())
    assert dict(entries["console_scripts"]) == {"minibert": "minibert.cli:main"}


def test_a_container_copies_all_that_pip_needs(wheel: dict[str, bytes], tmp_path: Path) -> None:
    text = (ROOT / "scripts/readme/recipes/Dockerfile").read_text("utf-8")
    for *sources, target in (line.split() for line in re.findall(r"^COPY (.+ /source/\S*)$", text, re.MULTILINE)):
        for source in sources:
            to = tmp_path / target.strip("/") / (Path(source).name if target.endswith("/") else "")
            to.parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
            copy(ROOT / source, to)
    (file,) = build(tmp_path / "source", tmp_path / "dist", "-t", "wheel").iterdir()
    with zipfile.ZipFile(file) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == wheel


def test_metadata_and_its_five_packages(metadata: email.message.Message) -> None:
    assert {name: metadata.get_all(name) for name in METADATA} == METADATA
    needs = metadata.get_all("Requires-Dist")
    core = {re.match(r"[\w-]+", need)[0] for need in needs if "extra ==" not in need}
    assert core == {"numpy", "safetensors", "tokenizers", "huggingface-hub", "threadpoolctl"}
    extras = set(metadata.get_all("Provides-Extra"))
    assert {"plot", "test", "reference", "bench"} <= extras
    with_torch = {need.split("extra == ")[1].strip("'\"") for need in needs if need.startswith("torch")}
    assert with_torch == {"reference", "bench"}


def test_classifiers_are_what_was_tried(metadata: email.message.Message) -> None:
    page = (ROOT / "scripts/site/pages/changelog.md").read_text("utf-8")
    tried = [row for row in re.findall(r"^\| (.+? \| .+?) \|$", page, re.MULTILINE) if "was not run" not in row]
    (minors,) = re.findall(r"Linux on x86-64, Python 3\.(\d+) to 3\.(\d+) ", "\n".join(tried))
    versions = [f"3.{minor}" for minor in range(int(minors[0]), int(minors[1]) + 1)]
    classifiers = [each.split(" :: ") for each in metadata.get_all("Classifier")]
    assert [each[-1] for each in classifiers if each[:2] == ["Programming Language", "Python"]] == ["3", *versions]
    assert [each[-1] for each in classifiers if each[0] == "Operating System"] == ["Linux"]
    assert {row.partition(" ")[0] for row in tried[1:]} == {"Linux"}


def test_an_index_is_given_no_link_into_the_project(metadata: email.message.Message) -> None:
    """It shows README.md without the files beside it; the words and blocks stay."""
    told, written = metadata.get_payload(), (ROOT / "README.md").read_text("utf-8")
    targets = re.findall(r"\]\(([^)\s]+)\)", written)
    assert len(targets) > 5
    assert not [target for target in targets if f"]({target})" in told and "://" not in target]
    assert all(f"`{target.partition('#')[0]}`" in told for target in targets if not target.endswith(".png"))
    assert re.findall(r"```.*?```", told, re.DOTALL) == re.findall(r"```.*?```", written, re.DOTALL)


def test_what_a_message_says_to_install_is_what_the_metadata_names(metadata: email.message.Message) -> None:
    """Another author's package is called minibert on the index: no message may name that one."""
    needs = {need.partition(";")[0].strip() for need in metadata.get_all("Requires-Dist")}
    extras = {f".[{extra}]" for extra in metadata.get_all("Provides-Extra")}
    sources = [*(ROOT / "minibert").rglob("*.py"), ROOT / "scripts/bulk_ray.py", ROOT / "README.md"]
    said = {name for file in sources for name in re.findall(r"pip install '?([^'` ]+)", file.read_text("utf-8"))}
    assert {"pyarrow>=18.1", "matplotlib>=3.9", "ray[data]>=2.60"} <= said
    assert said <= needs | extras | {"."}


def test_lowest_versions_are_those_that_the_metadata_names(metadata: email.message.Message) -> None:
    needs = [need for need in metadata.get_all("Requires-Dist") if re.search(r"^[^;]+$|extra == '(plot|test)'", need)]
    command = [sys.executable, "tests/support/lowest.py"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    lines = found.stdout.splitlines()
    assert len(lines) == len(needs) - 1  # minibert-numpy[plot] is its own
    for name, version in (line.split("==") for line in lines):
        assert any(re.match(rf"{name}(?![\w-]).*>={re.escape(version)}(,|;|$)", need) for need in needs), name


CALLS = ROOT / "tests/support/typed_calls.py"
WRONG = (
    "encoder.encode('a', normalise_embeddings=True)", "encoder.encode('a', normalize_embeddings='yes')",
    "encoder.encode('a', output_value='tokens')", "encoder.encode('a', truncate_dim='3')", "encoder.encode(3)",
    "encoder.encode('a', convert_to_numpy=False)", "encoder.encode(texts, None, 3, batch_size=8, thread=2)",
    "encoder.encode_query('a', prompt_nam='query')", "encoder.predict(('a', 'b'), activation=None)",
    "encoder.encode('a').shape[1]", "assert_type(encoder.encode(texts), Vector)", "encoder.fill(3)",
)  # fmt: skip


@pytest.mark.slow
def test_mypy_knows_what_methods_give(tmp_path: Path) -> None:
    """And that a wrong option is an error, each of these lines."""
    need("mypy", "test")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(CALLS.read_text("utf-8") + "".join(f"    {line}\n" for line in WRONG), "utf-8")
    for path, errors in ((CALLS, 0), (wrong, len(WRONG))):
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file", str(ROOT / "pyproject.toml"), str(path)]
        result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        found = {line.split(":")[1] for line in result.stdout.splitlines() if ": error: " in line}
        assert len(found) == errors, result.stdout + result.stderr


def test_dir_shows_public_names_alone() -> None:
    minibert.load  # noqa: B018
    names = dir(minibert)
    assert names == sorted({*minibert.__all__, "__version__"})
    assert all(hasattr(minibert, name) for name in names)
