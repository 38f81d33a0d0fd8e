"""The pages in Chromium, without a network: no error, no request, hostile text inert, filters that work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gdpo.report import write_compare_report, write_run_report

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync"]  # fmt: skip

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed"),
]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


def visit(browser: Any, path: Path, width: int = 1400, scheme: str = "light") -> tuple[Any, list[str], list[str]]:
    """A page, and what it printed and asked for."""
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme, offline=True)
    page, said, asked = context.new_page(), [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.resolve().as_uri())
    page.wait_for_timeout(500)
    return page, said, asked


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1400, "light"), (1400, "dark")])
def test_run_report(browser: Any, run_folder: Path, width: int, scheme: str) -> None:
    path = write_run_report(run_folder)
    page, said, asked = visit(browser, path, width, scheme)
    assert said == []
    assert asked == [path.resolve().as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.locator("canvas").count() >= 4
    assert page.evaluate("[...document.querySelectorAll('canvas')].every(c => c.width > 0 && c.height > 0)")
    page.context.close()


def test_filters(browser: Any, run_folder: Path) -> None:
    page, said, _ = visit(browser, write_run_report(run_folder))
    before = page.locator("#count").inner_text()
    page.locator("#rollouts input[type=search], #rollouts input[type=text]").first.fill("no completion says this")
    page.wait_for_timeout(300)
    assert page.locator("#count").inner_text() != before
    assert page.locator("#list > li").count() == 0
    assert said == []
    page.context.close()


def test_an_injected_script_would_be_refused(browser: Any, run_folder: Path, tmp_path: Path) -> None:
    """The content security policy is in force: a script that got into the page after all would not run."""
    text = write_run_report(run_folder).read_text(encoding="utf-8")
    (tmp_path / "page.html").write_text(text.replace("</body>", "<script>window.hacked = 1</script></body>"))
    page, said, _ = visit(browser, tmp_path / "page.html")
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert any("Content Security Policy" in line for line in said)
    page.context.close()


def test_compare_report(browser: Any, sweep_folder: Path) -> None:
    for width in (400, 1400):
        page, said, asked = visit(browser, write_compare_report(sweep_folder), width)
        assert said == []
        assert len(asked) == 1
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        page.context.close()
