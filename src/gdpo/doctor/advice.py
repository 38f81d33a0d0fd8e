"""What is known of the other hyperparameters when a run changes from GRPO to GDPO, with the evidence."""

from __future__ import annotations

from gdpo.doctor.base import Check

PAPER = "arXiv 2601.05242"


def what_stays(groups: float | None, size: int | None, processes: bool = False) -> Check:
    """The note on learning rate, batch, entropy and weights.

    Args:
        groups: groups in a batch, where the config says so.
        size: rollouts in a group, where it says so.
        processes: whether ``groups`` is of one process of several.
    """
    return Check("note", "config: only the advantage changes. What is known of the rest:",
                 "\n".join([_RATE, _batch(groups, size, processes), _ENTROPY, _WEIGHTS]))  # fmt: skip


_RATE = (
    f"learning rate: keep it. {PAPER} trains GRPO and GDPO with the same settings (1e-6, batch 512; TRL demo 5e-6).\n"
    "  The batch norm gives all advantages a root mean square of 1, tied groups included; GRPO's is\n"
    "  sqrt((G-1)/G x share of groups that vary). Where half the groups are tied, the others weigh 1.4 times as much:\n"
    "  watch the first steps' KL and clip share, as after any rise of the learning rate"
)
_ENTROPY = (
    f"entropy and KL: keep their coefficients ({PAPER}, TRL demo: beta 0.04). A search of the threads on GDPO in TRL\n"
    "  (4785), verl (5409, 6159) and NeMo-RL (1986, 2680) found no word on entropy (2026-12): nothing is known.\n"
    f"  Keep the batch norm: {PAPER} saw runs diverge without it"
)
_WEIGHTS = (
    "weights: they now act on normalised rewards. One that only evened out ranges becomes 1. A weight moves a\n"
    f"  reward's importance only among rewards about as hard; else gate the easy one on the hard one ({PAPER}, eq. 8)"
)


def _batch(groups: float | None, size: int | None, processes: bool) -> str:
    found = ""
    if groups is not None and size is not None:
        found = f" here {groups:g} groups of {size}{' a process' if processes else ''};"
    said = f"batch and group size: keep them;{found} the batch norm is over all groups of one batch"
    if groups is not None and groups <= 1 and not processes:
        said += ".\n  In one group alone it takes back what GDPO told apart: "
        said += "take method=mo_grpo, which has none, or a larger batch"
    else:
        said += f" ({PAPER}: 512\n  rollouts); in a batch of a few groups one odd group sets the scale of all"
    return said
