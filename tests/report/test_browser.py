"""The pages in Chromium, without a network: no error, no request, hostile text inert, filters that work."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from itertools import pairwise
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
    assert page.locator(".finding").count() >= 2
    assert page.locator("canvas").count() == 4
    assert page.locator(".card .spark svg").count() == 18
    assert page.locator("#conflicts tbody tr").count() > 3
    assert page.locator("#list > li").count() >= 5
    page.context.close()


def test_hostile_text_in_the_audit_stays_text(browser: Any, audited: Path) -> None:
    page, said, asked = visit(browser, audited)
    while page.locator("#more").is_visible():
        page.locator("#more").click()
    for summary in page.locator("#list summary").all()[:40]:
        summary.click()
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.locator("main script, main img, main iframe, main style, main [onerror], main [onload]").count() == 0
    assert page.locator("main a:not([href^='#'])").count() == 0
    answers = page.locator("#list pre.answer").all_inner_texts()
    for text in (
        "<script>window.hacked = 1</script>",
        "<style>body { display: none }</style>",
        "]]></style><svg",
        "{{ 7 * 7 }}",
    ):
        assert any(text in answer for answer in answers), text
    assert any("\u241b[31mred\u2407\u2400" in answer for answer in answers)  # ESC, BEL and NUL as pictures
    assert any("\u27e8U+202E\u27e9right to left" in answer for answer in answers)
    assert any("\ufffd lone \ufffd" in answer for answer in answers)
    assert any("characters left out" in answer and len(answer) < 5000 for answer in answers)
    everything = page.evaluate("document.documentElement.textContent")
    assert not any(mark in everything for mark in "\x00\x1b\x07\u202e")
    assert said == []
    assert len(asked) == 1
    page.context.close()


def test_an_injected_script_would_be_refused_in_the_audit(browser: Any, audited: Path, tmp_path: Path) -> None:
    text = audited.read_text(encoding="utf-8")
    hostile = "<script>window.hacked = 1</script><b onclick='window.hacked = 2' id='press'>press</b><p style='color: red' id='styled'>"
    (tmp_path / "page.html").write_text(text.replace("</body>", f"{hostile}</body>"), encoding="utf-8")
    page, said, asked = visit(browser, tmp_path / "page.html")
    page.locator("#press").click()
    assert page.evaluate("typeof window.hacked") == "undefined"
    assert page.evaluate("getComputedStyle(document.getElementById('styled')).color") != "rgb(255, 0, 0)"
    assert sum("Content Security Policy" in line for line in said) >= 3
    assert len(asked) == 1
    page.context.close()


def test_what_points_at_rollouts_of_the_audit(browser: Any, audited: Path) -> None:
    page, said, _ = visit(browser, audited)
    page.locator("#filters [name=text]").fill("onerror")
    assert page.locator("#list > li").count() > 0
    reads = page.locator("[data-why]").first
    why = reads.get_attribute("data-why")
    reads.focus()
    page.keyboard.press("Enter")
    page.wait_for_timeout(100)
    assert page.locator("#filters [name=why]").input_value() == why
    assert page.locator("#filters [name=text]").input_value() == ""
    assert all(why in text for text in page.locator("#list header").all_inner_texts())
    group = page.locator("#conflicts [data-group]").first
    step, number = group.get_attribute("data-step"), group.get_attribute("data-group")
    group.click()
    page.wait_for_timeout(100)
    heads = page.locator("#list header").all_inner_texts()
    assert len(heads) == 8
    assert all(f"step {step}" in text and f"group {number}" in text for text in heads)
    assert page.evaluate("document.activeElement.id") == "count"
    assert said == []
    page.context.close()


def test_every_part_of_a_rollout_is_shown(browser: Any, audited: Path) -> None:
    page, _, _ = visit(browser, audited)
    first = page.locator("#list .rollout").first
    head = first.locator("thead th").all_inner_texts()
    assert [text for text in head if text] == ["reward", "score", "normalised", "weight", "part"]
    advantage = float(first.locator("strong").inner_text().replace("\u2212", "-"))
    parts = [float(text.replace("\u2212", "-")) for text in first.locator("tbody td:nth-child(5)").all_inner_texts()]
    assert len(parts) == 3
    assert abs(sum(parts) - advantage) < 0.02
    page.context.close()


def test_the_audit_has_names_for_who_cannot_see_it(browser: Any, audited: Path) -> None:
    page, _, _ = visit(browser, audited)
    unnamed = page.evaluate(
        """[...document.querySelectorAll("[role=img], button, input, select, [tabindex='0'], table")].filter((one) =>
          !(one.getAttribute("aria-label") || one.closest("label")?.textContent.trim() || one.textContent.trim()
            || one.querySelector("caption"))).map((one) => one.outerHTML.slice(0, 80))"""
    )
    assert unnamed == []
    levels = page.evaluate("[...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert page.evaluate("document.documentElement.lang") == "en"
    page.context.close()


CONTRAST = """() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map((x) => x / 255)
      .map((x) => x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      if (!colour.startsWith("rgba") || !/, 0\\)$/.test(colour)) return colour;
    }
    return getComputedStyle(document.body).backgroundColor;
  };
  const found = [];
  for (const one of document.querySelectorAll("main *")) {
    if (![...one.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim()) || one.closest("svg")) continue;
    const [a, b] = [light(getComputedStyle(one).color), light(behind(one))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${one.className || one.tagName}: ${ratio.toFixed(2)}`);
  }
  return [...new Set(found)];
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_of_the_audit_has_contrast(browser: Any, audited: Path, scheme: str) -> None:
    page, _, _ = visit(browser, audited, 1400, scheme)
    assert page.evaluate(CONTRAST) == []
    page.context.close()


def test_the_keyboard_reaches_every_control_of_the_audit(browser: Any, audited: Path) -> None:
    page, _, _ = visit(browser, audited)
    page.evaluate(
        """[...document.querySelectorAll("a[href], button:not([hidden]), input, select, summary, [tabindex='0']")]
          .filter((one) => one.checkVisibility()).forEach((one, at) => { one.dataset.wanted = at; })"""
    )
    wanted = page.locator("[data-wanted]").count()
    reached = set()
    for _ in range(wanted + 30):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.dataset.wanted"))
    assert wanted > 60
    assert reached >= {str(at) for at in range(wanted)}
    page.context.close()


def test_cards_open_for_print(browser: Any, audited: Path) -> None:
    page, said, _ = visit(browser, audited)
    card = page.locator("details.card").first
    card.locator("summary").focus()
    page.keyboard.press("Enter")
    assert card.get_attribute("open") is None
    assert len(page.pdf()) > 10_000
    assert card.get_attribute("open") is not None
    page.emulate_media(media="print")
    assert not page.locator("#filters").is_visible()
    assert page.locator("h1").is_visible()
    assert said == []
    page.context.close()


def test_the_audit_without_scripts(browser: Any, audited: Path) -> None:
    context = browser.new_context(java_script_enabled=False, offline=True)
    page = context.new_page()
    page.goto(audited.resolve().as_uri())
    assert page.locator("h1").is_visible()
    assert "scripts are off" in page.content()
    assert page.locator(".card .spark svg").count() == 18
    context.close()


def test_the_audit_opens_within_a_second(browser: Any, audited: Path) -> None:
    """The best of three; the page of a million rollouts is measured by ``benchmarks/audit_page.py``."""
    times = []
    for _ in range(3):
        page, _, _ = visit(browser, audited)
        times.append(page.evaluate("performance.getEntriesByType('navigation')[0].loadEventEnd"))
        page.context.close()
    assert min(times) < 1000
