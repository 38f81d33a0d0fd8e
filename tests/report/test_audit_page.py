"""The audit's page as text: verdict first, hostile text escaped, a failed write keeps the old page."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest

import gdpo
from gdpo.report import html


class Attributes(HTMLParser):
    """Every tag and attribute that a browser would see."""

    def __init__(self):
        super().__init__()
        self.names, self.tags = set(), set()

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.names |= {f"{tag} {name}" for name, _ in attrs}


def test_the_page(audited):
    text = audited.read_text(encoding="utf-8")
    assert text.index("<h1>") < text.index("saved") < text.index("Findings, the costliest first")
    assert "default-src &#39;none&#39;" in text
    found = Attributes()
    found.feed(re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.S))
    assert len(found.names) > 50
    assert not [name for name in found.names if name.split()[1] == "style" or name.split()[1].startswith("on")]
    assert not found.tags & {"img", "iframe", "script"}
    assert "&lt;b&gt;again&lt;/b&gt;" in text
    assert "<b>again" not in text
    assert "<script>window.hacked" not in text
    assert len(text) < 3_000_000


def test_a_failed_write_keeps_the_old_page(audited, tmp_path, monkeypatch):
    target = tmp_path / "audit.html"
    target.write_text("old")
    monkeypatch.setattr(
        html.os, "replace", lambda *paths: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(gdpo.Error, match="No space left"):
        html._write(tmp_path, "audit.html.j2", *context(), html._RUN_SCRIPTS, "audit.html")
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def context():
    from gdpo.audit.run import audit
    from gdpo.report.audit_page import audit_page
    from gdpo.rollouts import Dump, Summary

    empty = Dump([], "trl", {}, Summary(format="trl"), lambda: iter(()))
    return audit_page(audit(empty), "nowhere")


def test_nothing_to_show_is_a_page_too(tmp_path):
    path = html._write(tmp_path, "audit.html.j2", *context(), html._RUN_SCRIPTS, "audit.html")
    assert "Not enough to say" in path.read_text()
