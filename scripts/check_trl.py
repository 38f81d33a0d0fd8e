"""The TRL adapter's tests on another TRL than the installed one, in an environment of its own over this one.

    python scripts/check_trl.py 0.20.0                   # the oldest that is supported, with the libraries of its time
    python scripts/check_trl.py newest                   # the newest on PyPI, where that is another than the installed
    python scripts/check_trl.py --contract 0.26.0 1.8.0  # only that the methods gdpo wraps stand in its source

Needs pip and PyPI. Leaves nothing behind.
"""

from __future__ import annotations

import argparse
import ast
import os
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from importlib.metadata import version
from pathlib import Path

from gdpo.adapters.trl_hook import HOOKS

ROOT = Path(__file__).resolve().parents[1]
BESIDE = {
    "0.20.0": ("transformers==4.56.2", "tokenizers==0.22.2", "huggingface_hub==0.36.2", "datasets==4.0.0",
               "accelerate==1.10.1", "dill==0.3.8", "multiprocess==0.70.16"),
}  # fmt: skip
"""What a TRL needs that does not work with the newest of the rest."""
TESTS = sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "adapters").glob("test_trl*.py"))
# The oldest TRL needs transformers 4, which does not read nano's tokenizer; the other tests make their own model.
LEFT_OUT = ("tests/adapters/test_trl.py::test_the_example_runs",)


def pip(python: str | Path, *arguments: str) -> None:
    """Run pip, quietly."""
    subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *arguments[:1], "-q", *arguments[1:]], check=True
    )


def environment(folder: Path, asked: str) -> Path:
    """A Python with that TRL before everything that this one has."""
    venv.create(folder, with_pip=True)
    (packages,) = folder.glob("lib/python*/site-packages")
    below = sysconfig.get_paths()["purelib"]
    (packages / "below.pth").write_text(f"import site; site.addsitedir({below!r})\n")
    python = folder / "bin" / "python"
    wanted = ("--upgrade", "trl") if asked == "newest" else (f"trl=={asked}", *BESIDE.get(asked, ()))
    pip(python, "install", "--no-deps", *wanted)
    return python


def run_tests(asked: str, extra: list[str]) -> int:
    """Run the adapter's tests on a TRL; the status of pytest."""
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder), asked)
        shown = "import trl, transformers; print(trl.__version__, transformers.__version__)"
        found = subprocess.run([python, "-c", shown], capture_output=True, text=True, check=True).stdout.split()
        if asked == "newest" and found[0] == version("trl"):
            print(f"TRL {found[0]} is the newest and the installed one, on which the whole suite runs")
            return 0
        if asked not in ("newest", found[0]):
            raise SystemExit(f"TRL {asked} was asked for, but {found[0]} was found")
        print(f"TRL {found[0]} with transformers {found[1]}", flush=True)
        command = [python, "-m", "pytest", "-q", "-m", "", "-p", "no:cacheprovider", *TESTS, *extra]
        command += [f"--deselect={test}" for test in (LEFT_OUT if asked in BESIDE else ())]
        settings = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", **os.environ}
        return subprocess.run(command, cwd=ROOT, env=settings, check=False).returncode


def check_contract(asked: str) -> list[str]:
    """What a TRL's source lacks of ``gdpo.adapters.trl_hook.HOOKS``."""
    with tempfile.TemporaryDirectory() as folder:
        pip(sys.executable, "download", "--no-deps", "-d", folder, f"trl=={asked}")
        (wheel,) = Path(folder).glob("trl-*.whl")
        source = zipfile.ZipFile(wheel).read("trl/trainer/grpo_trainer.py").decode()
    (trainer,) = [
        node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "GRPOTrainer"
    ]
    found = {node.name: node for node in trainer.body if isinstance(node, ast.FunctionDef)}
    wrong = []
    for name, expected in HOOKS.items():
        given = tuple(one.arg for one in found[name].args.args[1:]) if name in found else None
        if given != expected:
            wrong.append(f"TRL {asked}: {name} takes {given}, but {expected} was expected")
    return wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="+", help="versions of TRL, or newest")
    parser.add_argument("--contract", action="store_true", help="read the source only")
    args, extra = parser.parse_known_args()
    if args.contract:
        wrong = [line for asked in args.versions for line in check_contract(asked)]
        print("\n".join(wrong) or f"TRL {', '.join(args.versions)} has the methods that gdpo wraps")
        raise SystemExit(bool(wrong))
    raise SystemExit(max(run_tests(asked, extra) for asked in args.versions))


if __name__ == "__main__":
    main()
