"""The documentation: its Python runs, and every file it links to is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = sorted((Path(__file__).resolve().parents[1] / "docs").glob("*.md"))
BLOCKS = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in DOCS
    if page.name != "trl.md"  # its blocks go on from a user's script; test_framework_docs.py gives them one
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.S))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_python_blocks_run(block):
    exec(block, {})


@pytest.mark.parametrize("page", DOCS, ids=lambda page: page.stem)
def test_every_link_leads_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\((?!http)([^)#]+)(?:#[^)]*)?\)", text):
        assert (page.parent / target).exists(), target
