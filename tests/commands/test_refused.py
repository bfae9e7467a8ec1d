"""What the command line refuses, in the words of a shell: one table of arguments -> message.

tests/messages has the refusals of the methods themselves, the tests of each command those that need its files.
"""

from __future__ import annotations

from pathlib import Path

import encoders
import pytest
import word_models
from checkpoints import CONVBERT, write, write_wordpiece
from command_line import SMALL_GPT2, Printed, failure
from record_files import made
from reference_files import REFERENCE

from minibert import cli
from minibert.cli import main

RERANKER, LABELS, LATE = (str(REFERENCE / name) for name in ("uses-reranker", "uses-inference", "late-fixed"))
DENSE, EUCLIDEAN, STATIC = (str(REFERENCE / name) for name in ("sentences-dense", "sentences-prompts", "static-dense"))
# a model of twelve words, models with blocks and heads, files; each stands for its path
TINY, GPT2, BLOCKS, CONVOLVED = "a layer", "a GPT-2", "two blocks", "a ConvBERT"
LINES, BYTES, OUT, NOWHERE = "lines of text", "line 2 is no text", "a new folder", "./nowhere"


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    new = tmp_path_factory.mktemp
    return {
        GPT2: str(word_models.write(new("gpt2"), "gpt2")), BLOCKS: str(encoders.write(new("blocks"), "bert")),
        CONVOLVED: str(write_wordpiece(write(new("convbert"), CONVBERT))),
        LINES: str(made(new("lines") / "lines.txt", "we lived\nabove the clouds\n")),
        BYTES: str(made(new("bytes") / "bytes", b"we\n\xff\n")),
    }  # fmt: skip


# before a line is read or a model is opened, where the file or the model is nowhere
WHY, BLOCK = ("we", "--file", NOWHERE, "--why", "-m"), ("explain", "we", "-m", BLOCKS)
LIVE, BULK = ("explain", "--live"), ("bulk", LINES, "-o", OUT, "-m")
REFUSED: list[tuple[tuple[str, ...], str]] = [
    (("info", "-m", NOWHERE), "no such folder"), (("info", "-m", TINY, "--side", "decoder"), "side must be 'encoder'"),
    (("info", "-m", ""), "the model's name is empty"),
    (("verify", TINY, "--vectors", "/"), "/ is a folder; name the file in it"),
    *(((*writes, "/", "-m", NOWHERE), "/ is a folder; name the file to write, in it or elsewhere") for writes in (
        ("embed", "we", "-o"), ("explain", "we", "--html"), ("verify", "--save"), ("plot", "rows", "-o"))),
    (("explain", "-m", TINY, "we " * 20), "--truncate"), (("explain", "-m", TINY, "\udcff"), "U+DCFF"),
    (("explain", "we", "-m", NOWHERE, "--html", "page.pdf"), "must end in .html"),
    (("explain", "we", "-m", NOWHERE, "--html", "absent/page.html"), "no folder"),
    ((*BLOCK, "--block", "2"), "block 2 is not there: this model has blocks 0..1; choose one of them"),
    ((*BLOCK, "--block", "-1"), "block -1 is not there: this model has blocks 0..1"),
    ((*BLOCK, "--block", "1", "--head", "4"), "head 4 is not there: this model has heads 0..3"),
    ((*BLOCK, "--head", "1"), "--head needs a block; add --block 0"),
    ((*BLOCK, "--block", "1", "--html", "x.html"), "--html shows every block, head and token; leave out --block and"),
    ((*BLOCK, "--beside", "we"), "--beside compares two texts on a page; add --html page.html"),
    ((*BLOCK, "--block", "1", "--side", "encoder"), "leave out --side"),
    ((*LIVE, "--html", "x.html"), "leave out --html"), ((*LIVE, "--block", "1"), "leave out --block"),
    (("explain", "we lived", "--port", "80"), "add --live"), ((*LIVE, "-m", SMALL_GPT2, "a" * 40), "16"),
    (("embed", "-m", TINY, "we", "--pooling", "sum"), "pooling must be"),
    (("embed", "-m", NOWHERE, "we", "-o", "x.txt"), "must end in .npy or .safetensors, found '.txt'"),
    (("embed", "-m", NOWHERE, "we", "-o", "./absent/x.npy"), "there is no folder absent"),
    (("embed", "-m", NOWHERE, "we", "--pooling", "none", "-o", "x.npy"), "offsets"),
    (("plot", "sum", "-m", NOWHERE, "-o", "x.jpg"), "must end in .svg or .png or .pdf, found '.jpg'"),
    (("plot", "sum", "-m", NOWHERE), "-o FILE.svg"),
    (("plot", "attention", "--text", "he", "-m", BLOCKS, "-o", "x.svg", "--side", "encoder"), "leave out --side"),
    (("plot", "patching", "--text", "wonderfu", "-m", SMALL_GPT2, "-o", "x.svg"), "give the second as --other"),
    (("plot", "patching", "--text", "wonderfu", "-m", SMALL_GPT2, "-o", "x.svg", "--other", "wonde"), "found 9 and 6"),
    (("encode", "we", "-m", DENSE, "--prompt-name", "x"), "--prompt-name must be one of this model's 'query', 'docum"),
    (("encode", "we", "-m", DENSE, "-o", "x.txt"), "must end in .npy or .safetensors"),
    (("encode", "we", "-m", DENSE, "-o", f"{DENSE}/model.safetensors"), "model.safetensors"),
    (("encode", "we", "-m", LATE, "-o", "a.npy"), "use .safetensors, which gets offsets"),
    (("encode", "we", "-m", RERANKER), "for one vector of a text name the folder of a SentenceTransformer with --m"),
    (("similar", "we", "-m", DENSE), "give two texts, or one and --file"),
    (("similar", "we", "lived", "--file", "x", "-m", DENSE), "--file takes one text, found 2"),
    *(((*command, option, "0"), f"{option} must be an integer >= 1, found 0") for option, command in (
        ("-k", ("similar", "we", "--file", "x", "-m", DENSE)), ("-k", ("classify", "we", "-m", LABELS)),
        ("-k", ("rank", "we", "-m", RERANKER, "--file", NOWHERE)), ("-k", ("next", "we", "-m", GPT2)),
        ("--threads", ("rank", "we", "-m", RERANKER, "--file", NOWHERE)), ("--truncate-dim", (*BULK, DENSE)),
        ("--rows-per-shard", (*BULK, DENSE)))),
    (("similar", "we", "--file", NOWHERE, "-m", DENSE), "No such file"),
    (("similar", "we", "--file", BYTES, "-m", DENSE), "is not UTF-8"),
    (("similar", "we", "--file", "/", "-m", DENSE), "/: Is a directory"),
    (("similar", "we", "lived", "--why", "-m", DENSE), "--why is about the lines of a file; name one with --file"),
    (("similar", *WHY, EUCLIDEAN), "the measure euclidean is no sum over pairs"),
    (("similar", *WHY, DENSE), "a Dense with an activation comes after"),
    (("rank", *WHY, RERANKER), "a CrossEncoder reads both texts together"),
    (("rank", "we", "-m", DENSE, "--file", NOWHERE), "encode_query and encode_document; for scores of pairs name the"),
    (("classify", "we", "-m", DENSE), "; name a model with that head with --model"),
    ((*BULK, DENSE, "--default-prompt-name", "x"), "--default-prompt-name must be one of the prompts 'query', 'docu"),
    ((*BULK, DENSE, "--similarity-fn-name", "x"), "--similarity-fn-name must be one of cosine, dot, "),
    ((*BULK, DENSE, "--keep", "n"), "expected a flat column 'n'; there are 'text'; name another with --keep"),
    ((*BULK, CONVOLVED), "; minibert.load loads the input layer"),
    (("verify", STATIC), "transformers has no static models; name a file with another program's vectors with -"),
    (("extract", STATIC, "-o", OUT), "is a static model, which is only an input layer already; copy"),
    (("explain", "we", "--block", "0", "-m", STATIC), "this model has no blocks"),
    (("plot", "attention", "--text", "we", "-m", STATIC, "-o", "x.svg"), "a static model has no blocks"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), REFUSED, ids=lambda value: f"{value!r:.40}")
def test_what_cannot_be_done_is_one_line(
    arguments: tuple[str, ...], message: str, paths: dict[str, str], folder: Path, tmp_path: Path, capsys: Printed
) -> None:
    named = {TINY: folder, OUT: tmp_path / "made", **paths}
    assert message in failure(capsys, *(named.get(word, word) for word in arguments))
    assert not list(tmp_path.glob("made" if CONVOLVED in arguments else "made/*"))


WRONG: list[tuple[list[str], str]] = [
    ([], "a command is missing"), (["fly"], "there is no command 'fly'"),
    (["help", "fly"], "there is no command 'fly'"), (["--embed"], "there is no command '--embed'; did you mean embed?"),
    (["info", "--fly"], "there is no option --fly"),
    (["info", "--modle", "x"], "there is no option --modle; did you mean --model?"),
    (["embed", "--normalise", "x"], "there is no option --normalise; did you mean --normalize?"),
    (["embed", "x", "--troncate=1"], "there is no option --troncate=1; did you mean --truncate?"),
    (["info", "--fly\na"], r"there is no option --fly\na"), (["plot", "--html", "x"], "there is no option --html"),
    (["rank", "we"], "the following arguments are required: --file"),
    (["explain"], "the following arguments are required: TEXT"),
    (["explain", "we", "lived", "above"], "unexpected argument 'lived' 'above'; put a text or a path of"),
    (["plot", "rotarie"], "argument PICTURE: 'rotarie' is none of rows, similarity, "),
    (["plot", "rotarie"], "; did you mean rotary?"),
    (["encode", "--precision", "x"], "argument --precision: 'x' is none of float32, float16, int8, uint8, "),
    (["similar", "we", "-k", "five"], "argument -k: expected an integer, found 'five'"),
    (["similar", "a", "b", "--prompts", "query"], "--prompts: expected NAME=TEXT, found 'query'"),
    (["verify", "--tolerance", "x"], "argument --tolerance: expected a number, found 'x'"),
    (["embed", "--pooling"], "argument --pooling: expected one argument"),
    (["info", "a", "--model", "b"], "two models are named, 'a' and 'b'; name one"), (["bulk", "a.txt"], "-o"),
    (["bulk", "a.txt", "-o", "x", "--bad-rows", "drop"], "'drop' is none of "),
    (["bulk", "a.txt", "-o", "x", "--format", "npy"], "'npy' is none of "),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), WRONG, ids=lambda value: f"{value!r:.40}")
def test_a_wrong_argument_is_one_line_with_what_is_nearest(arguments: list[str], message: str, capsys: Printed) -> None:
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    command = f"minibert {arguments[0]}" if arguments and arguments[0] in cli.COMMANDS else "minibert"
    assert err.startswith("minibert: error: ") and err.count("\n") == 1
    assert err.endswith(f" see `{command} --help`\n") and message in err
