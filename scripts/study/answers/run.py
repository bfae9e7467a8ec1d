"""Run a study file, and then the answers to its exercises, with the study's variables.

python scripts/study/answers/run.py 005_attention --model ./all-MiniLM-L6-v2
"""

import sys
from pathlib import Path

ANSWERS = Path(__file__).resolve().parent
name = f"{sys.argv.pop(1)}.py"
sys.path[0], sys.argv[0] = str(ANSWERS.parent), str(ANSWERS.parent / name)  # as if the study file had been started
space = {"__name__": "__main__"}
for file in (ANSWERS.parent / name, ANSWERS / name):
    exec(compile(file.read_text("utf-8"), str(file), "exec"), space)
