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


def test_filters_by_score_and_order(browser: Any, run_folder: Path) -> None:
    page, said, _ = visit(browser, write_run_report(run_folder))
    advantages = page.locator("#list strong")
    highest = advantages.first.inner_text()
    page.select_option("select[name=reward]", "0")
    page.select_option("select[name=relation]", "eq")
    page.fill("input[name=value]", "0")
    scores = page.locator("#list .rollout tbody tr:first-child td:nth-child(2)").all_inner_texts()
    assert len(scores) == 20
    assert set(scores) == {"0"}
    page.click("button[type=reset]")
    page.select_option("select[name=order]", "low")
    assert highest.startswith("+")
    assert advantages.first.inner_text().startswith("\u2212")
    page.click("#more")
    assert page.locator("#list > li").count() == 40
    page.click("[data-filter=pairs] [data-kind=worse]")
    shown = page.locator(".pair:visible")
    assert shown.count() > 0
    assert set(shown.evaluate_all("all => all.map(pair => pair.dataset.kind)")) == {"worse"}
    assert said == []
    page.context.close()


def test_charts_by_keyboard_and_legend(browser: Any, run_folder: Path) -> None:
    page, said, _ = visit(browser, write_run_report(run_folder))
    chart = page.locator("[data-chart]").first
    assert chart.locator(".readout").inner_text().startswith("step 60")
    chart.locator(".plot").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    page.wait_for_timeout(100)
    assert chart.locator(".readout").inner_text().startswith("step 2 ")
    page.locator(".key").first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".key").first.get_attribute("aria-pressed") == "false"
    assert "correct" not in chart.locator(".readout").inner_text()
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


@pytest.mark.parametrize(("width", "scheme"), [(400, "light"), (1400, "light"), (1400, "dark")])
def test_audit_page(browser: Any, audited: Path, width: int, scheme: str) -> None:
    page, said, asked = visit(browser, audited, width, scheme)
    assert said == []
    assert asked == [audited.resolve().as_uri()]
    assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.locator(".finding").count() >= 2
    assert page.locator("canvas").count() == 4
    assert page.locator("#list > li").count() >= 5
    page.locator("#filters [name=text]").fill("onerror")
    assert page.locator("#list > li").count() > 0
    page.context.close()


def test_the_keyboard_reaches_every_control_of_the_audit(browser: Any, audited: Path) -> None:
    page, _, _ = visit(browser, audited)
    wanted = page.evaluate(
        "document.querySelectorAll('a[href], button:not([hidden]), input, select, summary, [tabindex=\"0\"]').length"
    )
    reached = set()
    for _ in range(wanted + 20):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate(
                "(() => { const e = document.activeElement; e.dataset.seen ??= String(Math.random()); return e.dataset.seen })()"
            )
        )
    assert len(reached) >= wanted
    page.context.close()
