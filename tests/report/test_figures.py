"""Page and print draw the same description."""

import math

import pytest

from easgd.report.data import build
from easgd.report.figures import curves, times_to_levels
from easgd.report.render_matplotlib import draw
from easgd.report.render_plotly import make_plots
from folders import comparison


@pytest.fixture
def model(tmp_path):
    return build([comparison(tmp_path)], levels=[0.1, 0.05])


def test_the_times_to_a_level_are_the_same_bars_on_page_and_print(model):
    # To 10 %: MSGD 8 s, EASGD 4 s, EAMSGD 2 s; to 5 %: EAMSGD alone, 4 s.
    panels = times_to_levels(model).rows[0].panels
    assert [[bar.y[0] for bar in panel.series] for panel in panels] == [[8, 4, 2], [math.inf, math.inf, 4]]
    assert [[list(bar.texts) for bar in panel.series] for panel in panels] == [[[], [], []], [["never"], ["never"], []]]
    printed = draw(times_to_levels(model))
    heights = [[bar.get_height() for bar in axes.patches] for axes in printed.subfigs[0].axes]
    assert heights == [[8, 4, 2], [pytest.approx(math.nan, nan_ok=True), pytest.approx(math.nan, nan_ok=True), 4]]
    assert [text.get_text() for text in printed.subfigs[0].legends[0].texts] == ["MSGD", "EASGD τ=10", "EAMSGD τ=10"]
    (page,) = [plot for plot in make_plots(model) if plot["id"] == "bars"]
    assert [trace["y"] for trace in page["data"]] == [[8, None], [4, None], [2, 4]]


def test_the_curves_are_the_same_on_page_and_print(model):
    axes = draw(curves(model, "linear")).subfigs[0].axes
    plots = make_plots(model, "linear")[:3]
    for panel, plot in zip(axes, plots, strict=True):
        assert panel.get_ylabel() == plot["title"]
        assert panel.get_ylim() == pytest.approx(plot["linear"])
        for line, trace in zip(panel.lines, plot["data"], strict=True):
            assert line.get_color() == trace["line"]["color"]
            assert list(line.get_xdata()) == pytest.approx(trace["x"])
            assert list(line.get_ydata()) == pytest.approx(trace["y"])
