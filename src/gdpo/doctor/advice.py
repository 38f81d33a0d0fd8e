"""What is known of the other hyperparameters when a run changes from GRPO to GDPO, with the evidence."""

from __future__ import annotations

from gdpo.doctor.base import Check


def what_stays(groups: float | None, size: int | None, processes: bool = False) -> Check:
    """The note on learning rate, batch, entropy and weights.

    Args:
        groups: groups in a batch, where the config says so.
        size: rollouts in a group, where it says so.
        processes: whether ``groups`` is of one process of several.
    """
    return Check("note", "config: only the advantage changes. What is known of the rest:",
                 "\n".join([_RATE, _batch(groups, size, processes), _ENTROPY, _WEIGHTS]))  # fmt: skip


_RATE = """\
learning rate: keep it. The GDPO paper (arXiv 2601.05242) trains GRPO and GDPO with the same settings (1e-6 at a batch
  of 512 rollouts; 5e-6 in its TRL demonstration), and NeMo-RL's GDPO example (gdpo_math_1B.yaml) inherits learning
  rate, batch, group size and KL from its GRPO example. The batch norm gives the advantages of a batch a root mean
  square of 1, tied groups included; GRPO's is sqrt((G-1)/G x share of groups that vary). Where half the groups are
  tied, the others weigh 1.4 times as much: watch the first steps' KL and clip share"""
_ENTROPY = """\
entropy and KL: keep their coefficients. A search of public discussions of GDPO (TRL 4785, verl 5409, NeMo-RL 1986
  and others) found nothing on entropy (2026-12), so nothing is known. Keep the batch norm: the paper saw some runs
  diverge without it"""
_WEIGHTS = """\
weights: they now act on normalised rewards, so one that only evened out ranges becomes 1. A weight moves a reward's
  importance only among rewards about as hard; else gate the easy one on the hard one (the paper's equation 8)"""


def _batch(groups: float | None, size: int | None, processes: bool) -> str:
    found = ""
    if groups is not None and size is not None:
        found = f" (here {groups:g} groups of {size}{' a process' if processes else ''})"
    said = f"batch and group size: keep them{found}. The batch norm is over all groups of one batch"
    if groups is not None and groups <= 1 and not processes:
        said += ": in one group\n  alone it takes back what GDPO told apart. "
        return f"{said}Take method=mo_grpo, which has none, or a larger batch"
    return f"{said}; among\n  few groups one odd group sets the scale of all"
