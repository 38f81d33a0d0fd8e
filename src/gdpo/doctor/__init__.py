"""``gdpo doctor``: is gdpo really active in a framework's run, and what has to be set.

A module a framework, in ``FRAMEWORKS`` by name. It has ``WHAT`` (a line on what it checks), ``recognises(text)``
(whether a config is of this framework) and ``check(config, workers, strict)``, which yields ``Check``; ``strict`` is
whether the user named the framework, so that its absence here is wrong.
"""

from gdpo.doctor.base import FRAMEWORKS, Check, run_doctor

__all__ = ["FRAMEWORKS", "Check", "run_doctor"]
