"""Pages written: one offline HTML file each, that asks the network for nothing and runs only its own script.

A page holds text that a model wrote. Three things keep it inert: Jinja2 escapes every value, the data for the script is
JSON in which ``<``, ``>`` and ``&`` are escapes, and a content security policy admits exactly the styles and scripts
of this package, by their hashes.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from gdpo.audit.run import Audit
from gdpo.core.errors import Error
from gdpo.report.audit_page import audit_page
from gdpo.report.compare_page import compare_page
from gdpo.report.formats import Scale, fixed, joined, plain, significant
from gdpo.report.run_page import run_page
from gdpo.report.text import visible
from gdpo.rollouts.dump import Dump
from gdpo.version import __version__

_HERE = Path(__file__).parent
_STYLES = ("vendor/uPlot.min.css", "static/report.css", "static/parts.css", "static/audit.css")
_RUN_SCRIPTS = ("vendor/uPlot.iife.min.js", "static/charts.js", "static/rollouts.js")
_COMPARE_SCRIPTS = ("vendor/uPlot.iife.min.js", "static/charts.js")


def write_run_report(run_folder: Path) -> Path:
    """Write ``report.html`` into a run folder from what lies there, also while the run is unfinished.

    Returns:
        The path of the page.

    Raises:
        Error: not a run folder, or the page cannot be written.
    """
    context, data = run_page(Path(run_folder))
    return _write(Path(run_folder), "run.html.j2", context, data, _RUN_SCRIPTS)


def write_compare_report(folder: Path) -> Path:
    """Write ``report.html`` into a compare folder: its arms over seeds, with what is pending or failed shown as such.

    Returns:
        The path of the page.

    Raises:
        Error: not a compare folder, or the page cannot be written.
    """
    context, data = compare_page(Path(folder))
    return _write(Path(folder), "compare.html.j2", context, data, _COMPARE_SCRIPTS)


def write_audit_report(found: Audit, dump: Dump, path: str, target: Path) -> Path:
    """Write the page of an audit.

    Args:
        found: the audit.
        dump: what was audited; not read again, everything the page shows was kept by the audit.
        path: where that was, as the user wrote it.
        target: the file to write; one that is there stays until the new one is whole.

    Returns:
        ``target``.

    Raises:
        Error: it cannot be written.
    """
    context, data = audit_page(found, path)
    return _write(target.parent, "audit.html.j2", context, data, _RUN_SCRIPTS, target.name)


def embedded(data: object) -> Markup:
    """``data`` as JSON that is safe inside a script element: nothing in it can end the element or start a comment."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def _write(
    folder: Path, template: str, context: dict[str, Any], data: dict[str, Any], scripts: tuple[str, ...],
    name: str = "report.html",
) -> Path:  # fmt: skip
    page = _render(template, context, data, scripts)
    target, draft = folder / name, folder / f".{name}.tmp"
    try:
        draft.write_bytes(page.encode("utf-8", "replace"))
        os.replace(draft, target)
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise Error(
            f"{target} cannot be written ({error.strerror or error}); free space or choose another folder"
        ) from None
    return target


def _render(template: str, context: dict[str, Any], data: dict[str, Any], scripts: tuple[str, ...]) -> str:
    style = "\n".join((_HERE / name).read_text(encoding="utf-8") for name in _STYLES)
    codes = [(_HERE / name).read_text(encoding="utf-8") for name in scripts]
    policy = (
        f"default-src 'none'; script-src {' '.join(_hash(code) for code in codes)}; style-src {_hash(style)}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    return (
        _environment()
        .get_template(template)
        .render(
            **context,
            policy=policy,
            style=Markup(style),
            scripts=[Markup(code) for code in codes],
            data=embedded(data),
            version=__version__,
        )
    )


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("gdpo.report", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        fixed=fixed,
        significant=significant,
        joined=joined,
        plain=plain,
        capitalize_first=lambda text: text[:1].upper() + text[1:],
        visible=visible,
        wrapping=wrapping,
        percent=lambda value: Scale(share=True).value(value),
        place=lambda value, reach: f"{50 + 46 * value / reach:.2f}%",
    )
    return environment


def wrapping(name: str) -> Markup:
    """A name that may be broken after the marks that join its words."""
    escaped = str(escape(visible(name)))
    for mark in "_/-.":
        escaped = escaped.replace(mark, f"{mark}<wbr>")
    return Markup(escaped)


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")
    return f"'sha256-{digest}'"
