"""The audit during training: a callback that looks at the latest rollouts now and then, and warns or stops."""

from __future__ import annotations

import warnings
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import numpy as np
import polars as pl
from accelerate.utils import broadcast_object_list
from transformers import TrainerCallback

from gdpo.audit.findings import Finding, at_or_above, check_severity
from gdpo.audit.run import audit
from gdpo.audit.thresholds import Thresholds
from gdpo.core.errors import Error
from gdpo.core.inputs import nearest
from gdpo.objective import Objective
from gdpo.rollouts import Batch, Dump, Summary


class AuditCallback(TrainerCallback):  # type: ignore[misc]
    """Audits the rollouts that ``GDPOTrainer`` (or an attached trainer) has made lately, as ``gdpo audit`` does a dump.

    Args:
        on_finding: "warn" says each finding once, with its remedy; "stop" also ends the training after the step.
        severity: the least severe finding that counts: "error", "warning" or "note".
        every: optimizer steps between two audits; what is left when training ends is audited then.
        window: steps whose rollouts are looked at, the latest; their scores are kept in memory, not their text.
        primary: the reward that matters most, see ``gdpo.audit.run.audit``.
        thresholds: other values of ``gdpo.audit.thresholds.Thresholds``.

    Raises:
        Error: an unknown value of these; at the first batch, a trainer without gdpo's advantages or no such reward.
    """

    def __init__(
        self, on_finding: Literal["warn", "stop"] = "warn", *, severity: str = "error", every: int = 20,
        window: int = 100, primary: str | None = None, thresholds: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        if on_finding not in ("warn", "stop"):
            raise Error(f"on_finding is {on_finding!r}, but 'warn' or 'stop' was expected")
        for name, value in (("every", every), ("window", window)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise Error(f"{name} is {value!r}, but a whole number of steps from 1 on was expected")
        Thresholds().with_changes(thresholds or {})
        self.on_finding, self.every, self.window = on_finding, every, window
        self.severity = check_severity(severity)
        self.primary, self.thresholds = primary, dict(thresholds or {})
        self.findings: list[Finding] = []
        """What was said so far."""
        self.stopped_by: Finding | None = None
        self._steps: deque[Any] = deque()
        self._objective: Objective | None = None
        self._new = False
        self._said: set[tuple[Any, ...]] = set()
        self._failed = False

    def gdpo_begin(self, objective: Objective) -> None:
        """Called on every process by the trainer before the rollouts of a step."""
        if self.primary is not None and self.primary not in objective.names:
            raise Error(f"primary is {self.primary!r}, which is no reward{nearest(self.primary, objective.names)}")
        self._objective = objective

    def gdpo_rollouts(self, step: Any) -> None:
        """Keep the numbers of a step (a ``gdpo.adapters.trl.Step``); called on the main process."""
        estimate = step.estimate
        weights = np.broadcast_to(np.asarray(estimate.weights, dtype=np.float64), step.scores.shape)
        columns = {f"weight/{name}": weights[:, k] for k, name in enumerate(estimate.names)}
        columns |= {"length": step.lengths, "advantage": np.asarray(estimate.advantages)}
        # Rollouts that were left out did not count in the advantages, and so do not in the audit.
        scores = (
            step.scores if step.include is None else np.where(np.asarray(step.include)[:, None], step.scores, np.nan)
        )
        self._steps.append((step.step, scores, np.asarray(estimate.group), columns))
        while self._steps[0][0] <= step.step - self.window:
            self._steps.popleft()
        self._new = True

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Audit where it is time."""
        if self._objective is None:
            raise Error("AuditCallback sees rollouts of GDPOTrainer only: use it, or gdpo.trl.attach(trainer)")
        if state.global_step % self.every == 0 and state.global_step < (state.max_steps or 0):
            self._look(state, control)
        return control

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Audit what came since the last time."""
        if self._new and self.stopped_by is None:
            self._look(state, None)

    def _look(self, state: Any, control: Any) -> None:
        """Audit on the main process; all processes learn whether to stop."""
        found = self._audited() if state.is_world_process_zero else []
        for one in found:
            warnings.warn(f"{one.what} ({one.severity}, step {state.global_step}). Remedy: {one.remedy}", stacklevel=2)
        self.findings += found
        if control is None or self.on_finding != "stop":
            return
        (first,) = broadcast_object_list([found[0] if found else None])
        if first is not None:
            self.stopped_by = first
            control.should_training_stop = True
            if state.is_world_process_zero:
                warnings.warn(f"training stops at step {state.global_step}: {first.what}", stacklevel=2)

    def _audited(self) -> list[Finding]:
        """Findings that were not said before. An audit that fails is said once; training goes on."""
        self._new = False
        try:
            result = audit(self._dump(), primary=self.primary, thresholds=self.thresholds)
        except Exception as error:  # whatever it is, it must not end the training
            if not self._failed:
                self._failed = True
                why = f"{type(error).__name__}: {error}"
                warnings.warn(f"the audit failed: {why}. Training goes on (this is said once)", stacklevel=2)
            return []
        keys = {(one.id, one.reward, one.rewards): one for one in at_or_above(result.findings, self.severity)}
        found = [one for key, one in keys.items() if key not in self._said]
        self._said |= keys.keys()
        return found

    def _dump(self) -> Dump:
        assert self._objective is not None
        names, kept = self._objective.names, list(self._steps)
        summary = Summary(format="memory", rewards=list(names))

        def read() -> Iterator[Batch]:
            summary.rollouts = sum(len(scores) for _, scores, _, _ in kept)
            summary.steps = [step for step, *_ in kept]
            for step, scores, group, columns in kept:
                ids = pl.Series("rollout", [f"{step}-{row}" for row in range(len(scores))], dtype=pl.String)
                yield Batch(step, scores, group, pl.DataFrame({"rollout": ids, **columns}))

        return Dump(list(names), "trl", {}, summary, read, {"objective": self._objective.record()})
