"""Build wheel and sdist, install them into clean environments outside the source, and try what a new user would.

`make release-check` runs it. It needs Python, a package registry and some minutes; the files stay in `dist/`.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from email.parser import HeaderParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TRAIN = ("train", "--engine", "simulate", "--workers", "2", "--steps", "40", "--out", "run")
MOST_MEGABYTES = 2.0


class Environment:
    """A fresh virtual environment; commands run in an empty folder, so that nothing of the source is seen."""

    def __init__(self, folder: Path) -> None:
        self.bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        self.cwd = folder / "work"
        self.cwd.mkdir(parents=True)
        venv.create(folder / "venv", with_pip=True)
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")
        self.environment = {name: value for name, value in os.environ.items() if name not in hidden}
        self.environment |= {"EASGD_DATA": str(folder / "data"), "OMP_NUM_THREADS": "1"}

    def run(self, *command: str, code: int = 0) -> str:
        """Run a program of the environment; return its output. Another exit code than `code` ends the check."""
        print(f"$ {' '.join(command)}", flush=True)
        program = [str(self.bin / command[0]), *command[1:]]
        done = subprocess.run(program, cwd=self.cwd, env=self.environment, capture_output=True, text=True, check=False)
        if done.returncode != code:
            sys.exit(f"{' '.join(command)}: exit code {done.returncode}, not {code}\n{done.stdout}{done.stderr}")
        return done.stdout + done.stderr

    def install(self, *what: str) -> None:
        """Install with the pinned versions."""
        self.run("python", "-m", "pip", "install", "--quiet", "-c", str(ROOT / "constraints.txt"), *what)


def expect(condition: bool, what: str) -> None:
    """End the check where something does not hold."""
    if not condition:
        sys.exit(f"release-check: {what}")


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; return both."""
    tools = Environment(folder)
    tools.install("build", "twine")
    shutil.rmtree(DIST, ignore_errors=True)
    tools.run("python", "-m", "build", "--outdir", str(DIST), str(ROOT))
    (wheel,), (sdist,) = DIST.glob("*.whl"), DIST.glob("*.tar.gz")
    tools.run("python", "-m", "twine", "check", "--strict", str(wheel), str(sdist))
    return wheel, sdist


def check_files(wheel: Path, sdist: Path) -> None:
    """Check names, metadata and size of what was built."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        head = HeaderParser().parsestr(archive.read(metadata).decode())
    folders = {name.partition("/")[0] for name in names}
    expect(folders == {"easgd", metadata.partition("/")[0]}, f"the wheel has other folders: {sorted(folders)}")
    for name in ("easgd/py.typed", "easgd/report/assets/page.css", "easgd/report/assets/page.js"):
        expect(name in names, f"the wheel lacks {name}")
    expect(head["Version"] == PROJECT["version"], f"version {head['Version']} is not pyproject's")
    expect(head["Requires-Python"] == PROJECT["requires-python"], "Requires-Python is not pyproject's")
    expect(head["License-Expression"] == PROJECT["license"], "the licence is missing")
    expect(set(head.get_all("Provides-Extra")) == set(PROJECT["optional-dependencies"]), "extras differ")
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for name in ("LICENSE", "README.md", "pyproject.toml", "src/easgd/py.typed"):
        expect(name in inside, f"the sdist lacks {name}")
    for path in (wheel, sdist):
        size = path.stat().st_size / 1e6
        expect(size < MOST_MEGABYTES, f"{path.name} has {size:.1f} MB, more than {MOST_MEGABYTES}")
        print(f"{path.name}: {size:.2f} MB")


def refused(user: Environment, command: tuple[str, ...], words: str) -> None:
    """Check that a command ends with exit code 2 and one line that says what to install."""
    said = user.run(*command, code=2)
    expect(words in said.splitlines()[-1] and "Traceback" not in said, f"{' '.join(command)} says: {said}")


def try_core(user: Environment, wheel: Path) -> None:
    """The core alone: it imports, answers, trains a script, and says in one line what a command lacks."""
    user.install(str(wheel))
    expect(user.run("easgd", "--version").strip() == f"easgd {PROJECT['version']}", "easgd --version")
    listed = user.run("python", "-m", "pip", "list").lower()
    for package in ("matplotlib", "plotly", "scikit-learn", "pillow", "ray"):
        expect(f"\n{package} " not in listed, f"the core install brings {package}")
    user.run("python", "-m", "pip", "check")
    user.run("python", "-c", "import easgd; [getattr(easgd, name) for name in easgd.__all__]")
    lines = {
        ("easgd", *TRAIN): "easgd[data]",
        ("easgd", "report", "run"): "run",
        ("easgd", "theory", "fig1"): "easgd[report]",
        ("easgd", "compare", "--methods", "easgd", "--engine", "simulate"): "easgd[report]",
    }
    for command, words in lines.items():
        refused(user, command, words)
    user.run("easgd", "doctor")
    user.run("easgd", "theory", "advise", "--workers", "4", "--lr", "0.1")


def try_extras(user: Environment, wheel: Path) -> None:
    """With the extras of the demo: train on the digits, report; the cluster's extra resolves."""
    user.install(f"{wheel}[data]")
    print(user.run("easgd", *TRAIN).splitlines()[-1])
    user.install(f"{wheel}[report]")
    user.run("easgd", "report", "run")
    expect((user.cwd / "run" / "report" / "index.html").exists(), "no report was written")
    refused(user, ("easgd", "train", "--engine", "ray"), "easgd[ray]")
    constraints = str(ROOT / "constraints.txt")
    user.run("python", "-m", "pip", "install", "--quiet", "--dry-run", "-c", constraints, f"{wheel}[ray]")


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="easgd-release-") as folder:
        wheel, sdist = build(Path(folder, "tools"))
        check_files(wheel, sdist)
        user = Environment(Path(folder, "user"))
        try_core(user, wheel)
        try_extras(user, wheel)
    print(f"release-check: {wheel.name} and {sdist.name} are good on Python {sys.version.partition(' ')[0]}")


if __name__ == "__main__":
    main()
