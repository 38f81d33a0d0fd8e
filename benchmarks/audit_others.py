"""What rldoctor and rlprobe say of the planted faults, beside `gdpo audit`.

    pip install rldoctor==0.2.0 rlprobe==0.1.0
    python benchmarks/audit_others.py [--seeds 10] [--out benchmarks/results/audit_others.json]

Both read step means (rlprobe keeps rollouts beside them), not groups of rollouts. They get what TRL logs of the same
simulated runs (gdpo.audit.simulate, four rewards, 32 groups of 8 a step): means and spreads of each reward, of their
sum, the share of groups without spread, lengths, and for rlprobe also advantages and rollouts. Runs of 200 steps, since
both ask for long series, and of 8, as in audit_power.py. For each tool and fault: the share of runs in which it says
anything at warning or above, the share in which what it says names the faulty reward, and what it says. The simulated
policy hardly learns, so a word on a plateau is true of every run.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from gdpo.audit.chunks import Chunk, chunks
from gdpo.audit.run import audit
from gdpo.audit.setting import Setting
from gdpo.audit.simulate import FAULTS, simulate
from gdpo.rollouts.dump import Dump
from gdpo.version import __version__

FIRST = 3000
Said = list[tuple[str, str]]
"""(what it is called, all its text)."""


def steps_of(dump: Dump) -> list[dict[str, Any]]:
    """What a trainer logs at each step, in TRL's names, and the step's rollouts."""
    config = dump.settings["objective"]
    setting = Setting(tuple(dump.rewards), method=config["method"])
    logs = []
    for chunk in chunks(dump, target=1):
        made = setting.estimate(chunk, setting.gated(chunk.scores))
        total = np.nansum(chunk.scores, axis=1)
        groups = np.split(total, chunk.starts[1:])
        deviations = np.array([group.std(ddof=1) for group in groups])
        log = {
            "step": chunk.steps[0] + 1, "reward": total.mean(), "reward_std": deviations.mean(),
            "frac_reward_zero_std": (deviations < 1e-8).mean(),
            "completions/mean_length": np.mean(chunk.column("length")),
            "completions/max_length": np.max(chunk.column("length")),
        }  # fmt: skip
        for k, name in enumerate(dump.rewards):
            log |= {f"rewards/{name}/mean": np.nanmean(chunk.scores[:, k]),
                    f"rewards/{name}/std": np.nanstd(chunk.scores[:, k])}  # fmt: skip
        logs.append({"log": {key: float(value) for key, value in log.items()}, "chunk": chunk, "made": made})
    return logs


def rldoctor(dump: Dump, logs: list[dict[str, Any]]) -> Said:
    """Problems of rldoctor."""
    from rl_doctor import diagnose
    from rl_doctor.ingest.base import run_from_records

    found = diagnose(run_from_records([one["log"] for one in logs], config={"algorithm": "grpo", "num_generations": 8}))
    return [(f.detector, " ".join([f.title, f.summary, *f.evidence, *f.prescription])) for f in found.problems]


def rlprobe(dump: Dump, logs: list[dict[str, Any]]) -> Said:
    """Warnings and worse of rlprobe."""
    from rlprobe.doctor.engine import diagnose_view
    from rlprobe.doctor.runview import RunView
    from rlprobe.schemas import RunManifest, StepRecord

    records = []
    for one in logs:
        log, advantages = one["log"], np.asarray(one["made"].advantages)
        records.append(StepRecord(
            step=int(log["step"]), reward_mean=log["reward"], reward_std=log["reward_std"],
            group_reward_std_mean=log["reward_std"], zero_variance_group_frac=log["frac_reward_zero_std"],
            completion_len_mean=log["completions/mean_length"], completion_len_max=log["completions/max_length"],
            adv_mean=float(advantages.mean()), adv_std=float(advantages.std()),
            adv_zero_frac=float((advantages == 0).mean()),
            reward_components={name: log[f"rewards/{name}/mean"] for name in dump.rewards},
        ))  # fmt: skip
    manifest = RunManifest(run_id="simulated", created_at="2026-01-01T00:00:00", algorithm="grpo")
    samples = [row for one in logs for row in samples_of(dump, one["chunk"], one["made"])]
    found = diagnose_view(RunView(manifest, records, samples_provider=lambda: samples))
    return [
        (f.signature_id, f"{f.explanation} {f.evidence} {f.suggested_actions}") for f in found if f.severity != "info"
    ]


def samples_of(dump: Dump, chunk: Chunk, made: Any) -> list[Any]:
    """The rollouts of a step as rlprobe records them."""
    from rlprobe.schemas import SampleRecord

    lengths = chunk.column("length")
    return [
        SampleRecord(
            step=chunk.steps[0] + 1, sample_id=name, group_id=str(chunk.group[row]),
            advantage=float(made.advantages[row]), reward_total=float(np.nansum(chunk.scores[row])),
            completion_len=int(lengths[row]),
            reward_components={n: float(v) for n, v in zip(dump.rewards, chunk.scores[row], strict=True) if v == v},
        )
        for row, name in enumerate(chunk.ids())
    ]  # fmt: skip


def ours(dump: Dump, logs: list[dict[str, Any]]) -> Said:
    """Warnings and errors of gdpo."""
    found = [one for one in audit(dump).findings if one.severity != "note"]
    return [(one.id, " ".join([one.what, *one.rewards])) for one in found]


TOOLS = {"gdpo audit": ours, "rldoctor": rldoctor, "rlprobe": rlprobe}


def measured(fault: str | None, steps: int, seeds: int) -> dict[str, Any]:
    """Each tool on runs with one fault."""
    says: dict[str, Counter[str]] = {tool: Counter() for tool in TOOLS}
    any_, named = Counter[str](), Counter[str]()
    for seed in range(FIRST, FIRST + seeds):
        dump = simulate(fault, seed, steps=steps)
        logs = steps_of(dump)
        for tool, judge in TOOLS.items():
            said = judge(dump, logs)
            says[tool].update({what for what, _ in said})
            any_[tool] += bool(said)
            named[tool] += fault is not None and any(FAULTS[fault].reward in text for _, text in said)
    return {
        tool: {"says something": any_[tool] / seeds, "names the reward": None if fault is None else named[tool] / seeds,
               "what": {what: count / seeds for what, count in says[tool].most_common()}}
        for tool in TOOLS
    }  # fmt: skip


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--steps", type=int, nargs="+", default=[200, 8])
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/audit_others.json"))
    arguments = parser.parse_args()
    result: dict[str, Any] = {
        "command": "python benchmarks/audit_others.py", "gdpo": __version__,
        "seeds": f"{FIRST} on, {arguments.seeds} each",
        **{name: version(name) for name in ("rldoctor", "rlprobe", "numpy")},
    }  # fmt: skip
    for steps in arguments.steps:
        table: dict[str, Any] = {}
        for fault in (None, *FAULTS):
            table[fault or "clean"] = measured(fault, steps, arguments.seeds)
            print(steps, fault, json.dumps(table[fault or "clean"]), flush=True)
        result[f"{steps} steps"] = table
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
