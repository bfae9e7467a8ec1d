"""Make the study files into executed notebooks, in build/study/, which git ignores.

    sh scripts/study/build                          all of them
    sh scripts/study/build 003_bert_step_by_step    some

Needs the extra `study`, which that command installs. The variable MINIBERT_MODEL names the model.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
STUDIES = sorted(path.stem for path in HERE.glob("*.py") if path.stem not in ("study", "probes", "notebooks"))
LONGEST = 300  # seconds that a cell may take, on a machine that is busy with other things


def build(name: str, folder: Path) -> Path:
    """Execute one study file as a notebook and write it with all that it printed and drew."""
    import jupytext
    import nbclient
    import nbformat

    notebook = jupytext.read(HERE / f"{name}.py", fmt="py:percent")
    resources = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(notebook, timeout=LONGEST, kernel_name="python3", resources=resources).execute()
    target = folder / f"{name}.ipynb"
    nbformat.write(notebook, target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description="make the study files into executed notebooks")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(STUDIES)} (default: all)")
    parser.add_argument("--output", type=Path, default=HERE.parents[1] / "build" / "study", metavar="FOLDER")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.names) - set(STUDIES)):
        parser.error(f"no study file {', '.join(unknown)}; there are {', '.join(STUDIES)}")
    arguments.output.mkdir(parents=True, exist_ok=True)
    if named := os.environ.get("MINIBERT_MODEL"):  # a notebook runs in another folder than this command
        os.environ["MINIBERT_MODEL"] = str(Path(named).resolve()) if Path(named).is_dir() else named
    # beside the notebooks, so that they can be run again; a link, which knows where the project is
    for name in ("study.py", "probes.py"):
        beside = arguments.output / name
        beside.unlink(missing_ok=True)
        beside.symlink_to(HERE / name)
    for name in arguments.names or STUDIES:
        start = time.monotonic()
        print(f"{build(name, arguments.output)}  ({time.monotonic() - start:.0f} s)", flush=True)


if __name__ == "__main__":
    main()
