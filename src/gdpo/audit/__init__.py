"""What rewards teach, measured on within-group data.

The package is callable: ``gdpo.audit(path_or_frame, ...)`` is ``gdpo.audit.entry.audit``, and its modules stay where
they are (``gdpo.audit.measures``, ``gdpo.audit.findings`` and the rest).
"""

from __future__ import annotations

import sys
import types
from typing import Any


class _Callable(types.ModuleType):
    """A package that can be called; what is called is imported then, so that importing the package stays fast."""

    def __call__(self, dump: Any, **options: Any) -> Any:
        """See ``gdpo.audit.entry.audit``."""
        from gdpo.audit.entry import audit

        return audit(dump, **options)


sys.modules[__name__].__class__ = _Callable
