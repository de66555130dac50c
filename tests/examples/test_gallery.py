"""Every example runs alone and under `easgd launch -n 2`, at a tiny size."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(300)  # processes that import torch and a framework, on a busy machine

EXAMPLES = Path(__file__).parents[2] / "examples"
GALLERY = [
    ("digits.py", "--epochs 1", None, r"test error of the center after 1 epochs: [\d.]+%"),
    ("preempted.py", "--epochs 4", None, r"epoch 4: test error of the center [\d.]+%"),
    ("char_gpt.py", "--steps 6 --eval-interval 3 --layers 1 --width 16 --batch-size 4 --block-size 16 --period 2", None,
     r"step 6: loss of the center [1-5]\.\d+"),
    ("reinforce.py", "--updates 10 --episodes 4 --length 3 --period 2", None,
     r"mean return of the center's policy: -?\d"),
    ("gan.py", "--steps 10 --period 2", None, r"radius of the center's samples: \d"),
    ("lightning_digits.py", "--epochs 1 --period 5", "lightning", r"test error of the center after 1 epochs: [\d.]+%"),
    ("hf_trainer.py", "--steps 4 --batch-size 2 --width 16 --period 2 --bf16", "transformers",
     r"loss of the center after 4 steps: \d"),
    ("accelerate_digits.py", "--epochs 1 --period 5", "accelerate",
     r"test error of the center after 47 steps: [\d.]+%"),
]  # fmt: skip


def run(folder: Path, *command: str) -> str:
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "EASGD_SHARED": str(folder),
        "PYTHONPATH": os.pathsep.join(str(Path(p).resolve()) for p in sys.path if p),
    }
    done = subprocess.run(
        [sys.executable, *command], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    if "--bf16" in command and (done.returncode == -signal.SIGILL or "SIGILL" in done.stderr):
        warnings.warn("this processor refuses an instruction of torch's bf16: tried in float32", stacklevel=2)
        shutil.rmtree(folder / "runs", ignore_errors=True)
        return run(folder, *(word for word in command if word != "--bf16"))
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize("launch", [[], ["-m", "easgd", "launch", "-n", "2"]], ids=["alone", "launched"])
@pytest.mark.parametrize(("script", "options", "package", "expected"), GALLERY, ids=[row[0] for row in GALLERY])
def test_example(script, options, package, expected, launch, tmp_path):
    if package is not None:
        pytest.importorskip(package, reason=f"needs easgd[{package}]")
    output = run(tmp_path, *launch, str(EXAMPLES / script), *options.split())
    assert re.search(expected, output), output
    if launch:
        records = list(tmp_path.glob("runs/*/**/records-1-0.jsonl"))
        assert len(records) == (2 if script == "gan.py" else 1)  # one file for each center
        assert len(list(tmp_path.glob("runs/*/center.safetensors"))) == (script != "gan.py")
        assert len(list(tmp_path.glob("runs/*/centers/*.safetensors"))) == (2 if script == "gan.py" else 0)


def test_a_preempted_worker_starts_again_from_the_center(tmp_path):
    launch = ("-m", "easgd", "launch", "-n", "2", "--restarts", "1")
    output = run(tmp_path, *launch, str(EXAMPLES / "preempted.py"), "--epochs", "3", "--lose", "1")
    assert re.search(r"\[1\] worker 1 begins again from the center, test error [\d.]+%", output), output


NOTEBOOKS = {
    "elastic_averaging.ipynb": (
        '[round(w) for w in result.center["weight"][0].tolist()], result.exit_codes',
        "([1, 1, 1, 1], [0, 0])",
    ),
    "train_and_compare.ipynb": ("[each.status['state'] for each in runs]", "['finished', 'finished']"),
    "theory_before_training.ipynb": ("found.converged, round(expected, 4)", "(True, 0.0105)"),
}


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook(name, tmp_path):
    notebook = json.loads((EXAMPLES / name).read_text())
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    expression, expected = NOTEBOOKS[name]
    # A notebook's last expressions are shown; here the result is printed.
    code = "\n".join(cells) + f"\nprint(({expression}))"
    # As in a notebook, the main module is no file that workers could import.
    assert run(tmp_path, "-c", code).splitlines()[-1] == expected


def test_every_notebook_is_executed():
    assert {path.name for path in EXAMPLES.glob("*.ipynb")} == set(NOTEBOOKS)
