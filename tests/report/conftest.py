"""Run folders to report on."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
from made_runs import write_run, write_sweep


@pytest.fixture(scope="session")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "math-gdpo")


@pytest.fixture(scope="session")
def sweep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sweep(tmp_path_factory.mktemp("runs") / "sweep", partial=True)


HOSTILE = [
    "<script>window.hacked = 1</script>", '<img src=x onerror="window.hacked = 2">', "<style>body { display: none }</style>",
    "\x1b[31mred\x07\x00", "\u202eright to left", "</script><script>window.hacked = 3</script>", "\u2028\u2029 {{ 7 * 7 }}",
    "<a href='javascript:window.hacked = 4'>x</a><iframe srcdoc='<script>parent.hacked = 5</script>'>",
    "<!--<script>", "]]></style><svg onload='window.hacked = 6'>", "long " * 200_000, "\ud800 lone \udfff", "",
]  # fmt: skip


@pytest.fixture(scope="session")
def audited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of an audit whose completions are hostile."""
    import json

    import numpy as np

    from gdpo.audit.run import audit
    from gdpo.report.html import write_audit_report
    from gdpo.rollouts import open_dump

    folder = tmp_path_factory.mktemp("audited")
    generator = np.random.default_rng(0)
    for step in range(1, 9):
        correct = (generator.random(64) < 0.5).astype(float)
        rows = [
            {
                "step": step, "prompt": f"{HOSTILE[row // 8]} {row // 8}", "completion": HOSTILE[row % len(HOSTILE)],
                "correct": correct[row], "<b>again</b>": 2 * correct[row], "saved": 100 * generator.random(),
            }
            for row in range(64)
        ]  # fmt: skip
        lines = "".join(json.dumps(row) + "\n" for row in rows)  # escapes, so that lone surrogates can be written
        (folder / f"completions_{step:05d}.jsonl").write_text(lines)
    dump = open_dump(folder)
    return write_audit_report(audit(dump), dump, str(folder), tmp_path_factory.mktemp("pages") / "audit.html")
