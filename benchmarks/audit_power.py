"""How often `gdpo audit` finds a planted fault, by dose, and how often it finds one that is not there.

    python benchmarks/audit_power.py [--seeds 200] [--out benchmarks/results/audit_power.json]

Runs of 8 steps x 32 groups x 8 rollouts (gdpo.audit.simulate). A fault counts as found where the finding of its name is
about its reward; a clean run's verdict is false where there is any finding, notes included.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from pathlib import Path

import numpy as np

from gdpo.audit.run import audit
from gdpo.audit.simulate import FAULTS, simulate
from gdpo.version import __version__

PLANTED, CLEAN = 1000, 1_000_000
"""First seeds; the thresholds were chosen on seeds 0 to 199."""


def found(name: str, seed: int, dose: float) -> bool:
    fault = FAULTS[name]
    result = audit(simulate(name, seed, dose))
    return any(one.id == fault.finding and fault.reward in one.rewards for one in result.findings)


def clean(seeds: int) -> dict:
    wrong, kinds, unsure = 0, Counter(), 0
    for seed in range(seeds):
        result = audit(simulate(None, CLEAN + seed))
        kinds.update(one.id for one in result.findings)
        wrong += bool(result.findings)
        unsure += not result.enough
    return {
        "seeds": seeds,
        "false": wrong,
        "share": wrong / seeds,
        "findings": dict(kinds),
        "not enough to say": unsure,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=200)
    parser.add_argument("--clean", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/audit_power.json"))
    arguments = parser.parse_args()
    started = time.perf_counter()
    table = {}
    for name, fault in FAULTS.items():
        power = {}
        for dose in sorted({*fault.doses, fault.dose}, key=lambda one: abs(one - fault.doses[0])):
            seeds = arguments.seeds if dose == fault.dose else max(arguments.seeds // 4, 1)
            hits = sum(found(name, PLANTED + seed, dose) for seed in range(seeds))
            power[f"{dose:g}"] = {"seeds": seeds, "found": hits / seeds}
        table[name] = {"finding": fault.finding, "dose": fault.meaning, "asked": fault.dose, "power": power}
        print(name, {dose: cell["found"] for dose, cell in power.items()}, flush=True)
    result = {
        "command": "python benchmarks/audit_power.py", "gdpo": __version__, "numpy": np.__version__,
        "seeds": {"planted": f"{PLANTED} on", "clean": f"{CLEAN} on"},
        "runs": "8 steps x 32 groups x 8 rollouts, 4 rewards", "faults": table, "clean": clean(arguments.clean),
        "seconds": round(time.perf_counter() - started, 1),
    }  # fmt: skip
    print(result["clean"], result["seconds"], "s")
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
