"""A checkpoint is data: nothing in it is executed, imported or unpickled, and no name in it leads out of its folder."""

from __future__ import annotations

import ast
import json
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from checkpoints import BERT, change_json, same_bits, write, write_vocab, write_wordpiece
from limits import CHILD_SECONDS

import minibert

PACKAGE = Path(minibert.__file__).parent

# -- the sources ---------------------------------------------------------------------------------------------------

RUNS_WHAT_IT_IS_GIVEN = re.compile(
    r"(builtins\.)?(eval|exec|compile|__import__)|(importlib\.)?import_module|runpy\..*|code\..*|"
    r"(pickle|cPickle|_pickle|dill|cloudpickle|joblib|shelve|marshal|torch)\.(load|loads|Unpickler|open)|"
    r"(np|numpy)\.(load|fromregex)|.*\.(exec_module|load_module|unpickle)|spec_from_file_location|"
    r"os\.(system|popen|exec\w*|spawn\w*)|subprocess\..*|ctypes\..*|yaml\.(load|unsafe_load)"
)
# a wing finds its own files by name; no checkpoint has a say in it
OWN_FILES = {
    ("families/__init__.py", 'import_module(f"{__name__}.{file}")'),
    ("families/rows.py", 'import_module(f"{__package__}.{FILES[model_type]}")'),  # of its table of files
    ("equations/__init__.py", 'import_module(f".{file}", __name__)'),  # of its table of files
    ("__init__.py", "import_module(file)"),  # of its table of public names
    ("cli.py", "import_module(f'minibert.commands.{FILES.get(name, name)}')"),  # one of COMMANDS
    # NumPy's own extension module, which is loaded already
    ("threads/kernels.py", "ctypes.CDLL(sys.modules['numpy._core._multiarray_umath'].__file__)"),
}


def calls(source: str) -> list[tuple[str, str]]:
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    return [(ast.unparse(node.func), ast.unparse(node)) for node in nodes]


def suspects(source: str, file: str = "") -> list[str]:
    allowed = {ast.unparse(ast.parse(call)) for place, call in OWN_FILES if place == file}
    return [call for name, call in calls(source) if RUNS_WHAT_IT_IS_GIVEN.fullmatch(name) and call not in allowed]


def test_the_package_calls_nothing_that_runs_what_it_is_given() -> None:
    files = sorted(PACKAGE.rglob("*.py"))
    assert len(files) > 30
    found = {str(path): suspects(path.read_text(), path.relative_to(PACKAGE).as_posix()) for path in files}
    assert {path: calls for path, calls in found.items() if calls} == {}
    for source in (
        "pickle.load(f)", "eval(text)", "np.load(p, allow_pickle=True)", "import_module(name)", "torch.load(p)",
        "def f():\n    exec(compile(t, n, 'exec'))", "importlib.import_module(config['auto_map'])", "__import__(n)",
    ):  # fmt: skip
        assert suspects(source), source


def test_the_reference_is_told_to_run_no_code_and_read_no_pickle() -> None:
    source = (PACKAGE / "verify" / "reference.py").read_text()
    assert '"trust_remote_code": False}' in source
    loads = [call for name, call in calls(source) if name.endswith("from_pretrained")]
    assert len(loads) == 2 and all("**self._options" in call for call in loads)
    assert "use_safetensors=True" in loads[0]


TRAP = "import pathlib, os\npathlib.Path(os.environ['TRAP']).write_text('run')\n"
CODE_FILES = (
    "modeling_x.py", "configuration_x.py", "tokenization_x.py", "tokenizer.py", "config.py", "__init__.py",
    "handler.py", "setup.py", "conftest.py", "sitecustomize.py", "numpy.py",
)  # fmt: skip
PICKLES = ("pytorch_model.bin", "model.pkl", "tokenizer.pkl", "training_args.bin", "vocab.pkl", "model.pt")
DATA = {"config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "vocab.txt"}

WATCHED = """
import json, os, sys
folder, todo = sys.argv[1], sys.argv[2]
seen = []
def hook(event, args):
    if event in ("exec", "compile"):
        name = getattr(args[0], "co_filename", None) if event == "exec" else args[1]
    elif event == "import":
        name = args[1]
    else:
        name = args[0] if args else ""
    inside = isinstance(name, (str, os.PathLike)) and os.path.abspath(os.fspath(name)).startswith(folder)
    if event.startswith(("pickle.", "ctypes.", "subprocess.", "os.system", "os.exec", "os.posix_spawn", "socket.")):
        seen.append([event, str(args)])
    elif inside and event in ("open", "import", "exec", "compile"):
        seen.append([event, os.path.basename(os.fspath(name))])
import minibert, minibert.files.tokenizer, safetensors, tokenizers  # their own libraries are opened now
sys.addaudithook(hook)
result = None
exec(todo)
print(json.dumps([list(seen), result]))
"""


class Trap:
    def __reduce__(self) -> tuple[object, ...]:
        return exec, (TRAP,)


@pytest.fixture
def trapped(tmp_path: Path) -> Path:
    """A good BERT that also brings code along under every name that some library would run."""
    auto_map = {"AutoConfig": "configuration_x.Config", "AutoModel": "modeling_x.Model",
                "AutoTokenizer": ["tokenization_x.Tokenizer", None]}  # fmt: skip
    folder = write(tmp_path / "trapped", {**BERT, "auto_map": auto_map, "custom_pipelines": {"x": "handler.x"}})
    settings = {
        "auto_map": auto_map, "tokenizer_class": "tokenizer.Trap", "tokenizer_file": "../outside/tokenizer.json",
        "vocab_file": str(tmp_path / "outside" / "vocab.txt"), "name_or_path": "../outside",
    }  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (tmp_path / "outside").mkdir()
    write_wordpiece(write_vocab(tmp_path / "outside"))
    for name in CODE_FILES:
        (folder / name).write_text(TRAP, encoding="utf-8")
    for name in PICKLES:
        (folder / name).write_bytes(pickle.dumps(Trap()))
    return folder


def watched(folder: Path, todo: str) -> tuple[list[list[str]], object, bool]:
    """What Python was asked for inside the folder, what came out, and whether a trap was sprung."""
    trap = folder.parent / "sprung"
    environment = {**os.environ, "TRAP": str(trap), "PYTHONPATH": str(PACKAGE.parent), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-c", WATCHED, str(folder), todo]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=CHILD_SECONDS)
    assert done.returncode == 0, done.stderr
    seen, result = json.loads(done.stdout)
    return seen, result, trap.exists()


@pytest.mark.parametrize("tokenizer", ["tokenizer.json", "vocab.txt"])
def test_nothing_in_a_folder_is_executed_imported_or_unpickled(trapped: Path, tokenizer: str) -> None:
    if tokenizer == "vocab.txt":
        write_vocab(trapped)
        # of a class that nobody knows only tokenizer.json is read
        change_json(trapped / "tokenizer_config.json", tokenizer_class="BertTokenizer")
    else:
        write_wordpiece(trapped)
    use = "layer = minibert.load(folder); batch = layer.tokenize(['we lived above the clouds', 'a'])"
    more = "result = layer(**batch).ravel().tolist(); layer.embed('we'), layer.tokens([1]), repr(layer)"
    seen, result, sprung = watched(trapped, f"{use}; {more}, layer.attention_position")
    assert not sprung and {event for event, _ in seen} == {"open"} and {name for _, name in seen} <= DATA
    layer = minibert.load(write_wordpiece(write(trapped.parent / "plain")))
    want = layer(**layer.tokenize(["we lived above the clouds", "a"])).ravel()
    assert same_bits(np.array(result, np.float32), want)


def test_neither_a_tokenizer_outside_the_folder_is_looked_for_nor_a_pickle_read(trapped: Path) -> None:
    todo = "try: minibert.load(folder).tokenize('we')\nexcept minibert.MinibertError as error: result = str(error)"
    seen, result, sprung = watched(trapped, todo)
    assert not sprung and {name for _, name in seen} <= DATA
    assert "has no tokenizer: expected tokenizer.json" in str(result)
    (trapped / "model.safetensors").unlink()
    seen, result, sprung = watched(trapped, todo)
    assert not sprung and {name for _, name in seen} == {"config.json"}
    assert "pytorch_model.bin" in str(result) and "safe_serialization=True" in str(result)


SPRUNG = {
    "pickle.find_class": "import pickle; pickle.load(open(folder + '/model.pkl', 'rb'))",
    "exec": "sys.path.insert(0, folder); import modeling_x",
    "compile": "exec(compile(open(folder + '/tokenizer.py').read(), folder + '/tokenizer.py', 'exec'))",
}


@pytest.mark.parametrize("event", SPRUNG)
def test_the_watcher_sees_a_trap_that_is_sprung(trapped: Path, event: str) -> None:
    seen, _, sprung = watched(trapped, SPRUNG[event])
    assert sprung and event in {event for event, _ in seen}
