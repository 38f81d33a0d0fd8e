"""Runs the tests of the NeMo-RL adapter on NeMo-RL's own code.

    NEMO_RL=path/to/NeMo-RL python scripts/check_nemo_rl.py

The path is a checkout, or a bare git directory, of which HEAD is exported into a temporary folder. NeMo-RL need not be
installed: what its modules import and this environment lacks is stubbed, and named in the output.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def main() -> int:
    given = os.environ.get("NEMO_RL")
    if not given:
        print("set NEMO_RL to a checkout of NeMo-RL, or to its git directory", file=sys.stderr)
        return 2
    source = Path(given).resolve()
    with tempfile.TemporaryDirectory() as folder:
        checkout = source
        if not (source / "nemo_rl").is_dir():
            archive = subprocess.run(
                ["git", "-C", source, "archive", "HEAD", "nemo_rl"], capture_output=True, check=False
            )
            if archive.returncode:
                print(f"{source} is neither a checkout nor a git directory of NeMo-RL", file=sys.stderr)
                return 2
            subprocess.run(["tar", "x", "-C", folder], input=archive.stdout, check=True)
            checkout = Path(folder)
        version = subprocess.run(
            ["git", "-C", source, "log", "-1", "--format=%H of %cs"], capture_output=True, text=True, check=False
        ).stdout.strip()
        print(f"NeMo-RL {version or '(no git history)'}", flush=True)
        paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
        environment = {**os.environ, "NEMO_RL": str(checkout), "PYTHONPATH": os.pathsep.join(p for p in paths if p)}
        command = [
            sys.executable,
            "-m",
            "pytest",
            "tests/adapters/test_nemo_rl.py",
            "tests/adapters/test_nemo_rl_loop.py",
            "-v",
            "-s",
            "-p",
            "no:cacheprovider",
        ]
        return subprocess.run([*command, *sys.argv[1:]], cwd=ROOT, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
