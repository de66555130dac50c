"""The page in a real browser."""

import pytest

import easgd
from browser import Browser, chromium
from folders import comparison

pytestmark = pytest.mark.skipif(chromium() is None, reason="no chromium on this machine (Debian: apt install chromium)")

METHODS = ["MSGD", "EASGD p=4 τ=10", "EAMSGD p=4 τ=10"]
PANELS = ("train_loss", "test_loss", "test_error")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    return easgd.write_report(comparison(tmp_path_factory.mktemp("runs")), levels=[0.1, 0.05])


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile") / "data")
    yield browser
    browser.close()


def lines(browser, panel):
    """Names of the curves that are really on the screen: paths of the drawing with a length."""
    return browser.evaluate(
        f"[...document.querySelectorAll('#plot-{panel} .scatterlayer .trace')]"
        ".filter(t => t.querySelector('path.js-line')?.getTotalLength() > 50).map(t => t.__data__[0].trace.name)"
    )


def test_it_loads_offline_without_complaint_and_draws(browser, page):
    browser.open(page, plots=8)
    assert browser.evaluate("document.querySelector('h1').textContent").startswith("EAMSGD p=4 τ=10 reaches 10 %")
    for panel in PANELS:
        assert lines(browser, panel) == METHODS
    # 10 %: all three; 5 %: EAMSGD alone
    bars = "[...document.querySelectorAll('#plot-bars .bars .point path')].filter(p => p.getBBox().height > 2).length"
    assert browser.evaluate(bars) == 4
    assert "never reached" in browser.evaluate("document.querySelector('#time-to-error').innerText")
    # nothing is offered that would send data away
    titles = browser.evaluate("[...document.querySelectorAll('.modebar-btn')].map(b => b.dataset.title)")
    assert not [title for title in titles if "Share" in title or "Cloud" in title or "Studio" in title]
    assert browser.requests == [page.resolve().as_uri()]
    assert browser.complaints == []


def test_a_click_in_the_legend_hides_a_method_everywhere(browser, page):
    browser.open(page, plots=8)
    browser.click(".legend button[data-method='2']")
    for panel in PANELS:
        assert lines(browser, panel) == METHODS[:2]
    assert browser.evaluate("document.querySelector('[data-method=\"2\"]').getAttribute('aria-pressed')") == "false"
    browser.click(".legend button[data-method='2']")
    assert lines(browser, "test_error") == METHODS
    assert browser.complaints == []


def test_scale_and_zoom_reach_all_curves(browser, page):
    browser.open(page, plots=8)
    for scale in ("log", "linear"):
        browser.click(f".scale button[data-scale='{scale}']")
        for panel in PANELS:
            assert browser.evaluate(f"document.getElementById('plot-{panel}')._fullLayout.yaxis.type") == scale
            assert lines(browser, panel) == METHODS
    browser.evaluate("Plotly.relayout('plot-test_error', {'xaxis.range[0]': 2, 'xaxis.range[1]': 4}).then(() => 0)")
    for panel in (*PANELS, "distance"):
        browser.wait(f"document.getElementById('plot-{panel}')._fullLayout.xaxis.range.join() == '2,4'")
    assert browser.complaints == []


@pytest.mark.parametrize("width", [390, 768, 1366])
def test_nothing_runs_out_of_the_page(browser, page, width):
    browser.open(page, plots=8, width=width, height=844)
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    overflow = browser.evaluate(
        "[...document.querySelectorAll('.card, .scroll, h1, .facts')].map(e => e.getBoundingClientRect())"
        ".filter(r => r.left < 0 || r.right > innerWidth + 1).length"
    )
    assert overflow == 0
    assert browser.complaints == []
