"""The one table of rollouts: what every adapter writes and every measure reads; and the readers of dumps."""

from gdpo.rollouts.dump import Batch, Dump, Summary
from gdpo.rollouts.reader import FORMATS, open_dump
from gdpo.rollouts.table import SCHEMA_VERSION, rollout_frame, write_frame

__all__ = ["FORMATS", "SCHEMA_VERSION", "Batch", "Dump", "Summary", "open_dump", "rollout_frame", "write_frame"]
