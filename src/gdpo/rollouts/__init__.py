"""The one table of rollouts: what every adapter writes and every measure reads."""

from gdpo.rollouts.dump import Batch, Dump, Summary
from gdpo.rollouts.table import SCHEMA_VERSION, rollout_frame, write_frame
from gdpo.rollouts.writer import RolloutWriter

__all__ = ["SCHEMA_VERSION", "Batch", "Dump", "RolloutWriter", "Summary", "rollout_frame", "write_frame"]
