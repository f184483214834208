"""Panels: names that fit, panels that wrap, and curves that are lost on the way."""

from __future__ import annotations

import re
from importlib import resources

import numpy as np
import pytest

from rookery.runs import plot
from rookery.runs.plot import plot_panels


@pytest.fixture
def drawn(monkeypatch):
    """The figures that are drawn."""
    figures, make = [], plot._figure

    def kept(*size):
        figures.append(make(*size))
        return figures[-1]

    monkeypatch.setattr(plot, "_figure", kept)
    return figures


def curve(*mean: float):
    return np.arange(len(mean)), np.asarray(mean), np.zeros(len(mean))


@pytest.mark.parametrize("length", [3, 40])
def test_a_legend_below_all_panels_is_not_cut(length, drawn, tmp_path):
    curves = {f"{number} {'n' * length}": curve(0.1, 0.2) for number in range(8)}
    plot_panels({"one": curves, "two": curves}, "accuracy", tmp_path / "it.png")
    (legend,) = drawn[0].legends
    box = legend.get_window_extent()
    assert box.x0 >= 0 and box.x1 <= drawn[0].bbox.x1


def test_no_curve_hides_another_and_the_legend_is_outside(drawn, tmp_path):
    """Two methods that do the same are both seen: the one below is wider, the one above is dashed."""
    curves = {"simfbo": curve(0.1, 0.2), "fedbio": curve(0.1, 0.2)}
    plot_panels({"one": curves, "two": curves}, "accuracy", tmp_path / "it.png")
    below, above = drawn[0].axes[0].lines
    assert below.get_linewidth() > above.get_linewidth() and above.get_linestyle() != below.get_linestyle() == "-"
    assert not any(axes.get_legend() for axes in drawn[0].axes) and len(drawn[0].legends) == 1


def test_clients_are_drawn_by_their_names(drawn, tmp_path):
    plot.plot_counts(np.ones((2, 3), int), ["a", "b", "c"], tmp_path / "it.png", names=("north", "south"))
    assert [label.get_text() for label in drawn[0].axes[0].get_xticklabels()] == ["north", "south"]


def test_curves_have_the_colours_of_the_report():
    page = resources.files("rookery.runs").joinpath("report.html").read_text(encoding="utf-8")
    assert tuple(re.findall(r"--c\d: light-dark\((#\w+),", page)) == plot.COLOURS


def test_panels_wrap_and_none_is_empty(drawn, tmp_path):
    plot_panels({str(number): {"a": curve(0.1, 0.2)} for number in range(7)}, "accuracy", tmp_path / "it.png", wrap=4)
    axes = drawn[0].axes
    assert len(axes) == 8 and [each.get_visible() for each in axes] == [True] * 7 + [False]


def test_a_curve_that_ends_leaves_the_scale_as_it_is(drawn, tmp_path):
    curves = {"lost": curve(0.5, np.nan), "whole": curve(0.5, 0.9)}
    plot_panels({"one": curves}, "accuracy", tmp_path / "it.png", lowest=0.4)
    low, high = drawn[0].axes[0].get_ylim()
    assert low == 0.4 and 0.9 < high < 1
