"""A comparison as text: what `print(comparison)` and the command show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rookery.direction import GIVEN
from rookery.experiments.statistics import LEVEL
from rookery.experiments.tune import Tuning

if TYPE_CHECKING:
    from rookery.experiments.compare import Comparison

EQUAL = ("exchanges", "megabytes", "gradients")  # what is made equal; seconds depend on the machine
FEW = 6  # values of a grid that are listed; of more, their number and range


def comparison_text(comparison: Comparison) -> str:
    """Show a comparison: how it was made, its table, paired differences, and what was tuned."""
    blocks = ["\n".join([_heading(comparison), *aligned(_rows(comparison))])]
    if differences := _differences(comparison):
        blocks.append(differences)
    if comparison.tunings:
        blocks.append("\n".join(["tuned on validation data:", *_tunings(comparison.tunings)]))
    return "\n\n".join(blocks)


def aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """Lines of cells with their columns aligned."""
    widths = [max(map(len, column)) for column in zip(*lines)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]


def _heading(comparison: Comparison) -> str:
    better = "lower" if comparison.falling else "higher"
    source = f"falling={comparison.falling}" if comparison.direction == GIVEN else comparison.direction
    seeds = max(map(len, comparison.histories.values()), default=0)
    spread = f"{seeds} seeds: mean ± sample deviation" if seeds > 1 else "1 seed, so there is no spread"
    return f"{comparison.metric}: {better} is better ({source}); {spread}"


def _rows(comparison: Comparison) -> list[list[str]]:
    """The main table. The final metric has a column of its own only where no column of equal costs is the same."""
    rows, metric = comparison.table().rows, comparison.metric
    final = f"final {metric}"
    same = next((axis for axis in EQUAL if all(_equal(row[final], row[f"at equal {axis}"]) for row in rows)), None)
    columns = {} if same else {final: final}
    for axis in EQUAL:
        amount = comparison.common(axis)  # NaN where every run diverged
        head = f"at equal {axis}" if math.isnan(amount) else f"at {amount:.4g} {axis}"
        columns[f"at equal {axis}"] = head + (" (final)" if axis == same else "")
    target = comparison.target
    heads = ["method", *columns.values()]
    if target is not None:
        heads += [*(f"{axis} to {target:g}" for axis in ("exchanges", "megabytes", "seconds")), "reached"]
    marked = any(row["diverged"] or row["worse than at first"] for row in rows)
    heads += ["runs"] if marked else []
    return [heads, *(_row(row, list(columns), target is not None, marked) for row in rows)]


def _row(row: Mapping[str, Any], columns: list[str], target: bool, marked: bool) -> list[str]:
    cells = [str(row["method"]), *(_cell(row, name, ".4g", "diverged") for name in columns)]
    if target:
        forms = {"exchanges": ".3g", "megabytes": ".3g", "seconds": ".3g"}
        cells += [_cell(row, f"{axis} to target", form, "never") for axis, form in forms.items()]
        cells.append(f"{row['reached']} of {row['seeds']}")
    if marked:
        left, worse = row["seeds"] - row["diverged"], row["worse than at first"]
        said = [f"{left} of {row['seeds']}, {row['diverged']} diverged"] if row["diverged"] else []
        said += [f"{worse} ended worse than at first"] if worse else []
        cells.append("; ".join(said))
    return cells


def _equal(first: float, second: float) -> bool:
    return first == second or (math.isnan(first) and math.isnan(second))


def _cell(row: Mapping[str, Any], name: str, form: str, missing: str) -> str:
    mean, spread = row[name], row[f"{name} spread"]
    if math.isnan(mean):
        return missing
    return f"{mean:{form}}" if math.isnan(spread) else f"{mean:{form}} ± {spread:.2g}"


def _differences(comparison: Comparison) -> str:
    """Paired differences from the best method, where there are two methods and two seeds."""
    rows = [row for row in comparison.differences().rows if row["pairs"] > 1]
    if not rows:
        return ""
    level = f"{100 * LEVEL:.0f} % interval"
    head = ["method", f"minus {rows[0]['minus']}", level, "better in"]
    lines = [
        [
            str(row["method"]),
            f"{row['difference']:.3g}",
            f"{row['low']:.3g} to {row['high']:.3g}",
            f"{row['better']} of {row['pairs']} seeds",
        ]
        for row in rows
    ]
    amount = f"{comparison.common('exchanges'):.4g} exchanges"
    return "\n".join([f"differences at {amount}, paired by seed:", *aligned([head, *lines])])


def _tunings(tunings: Mapping[str, Tuning]) -> list[str]:
    """One line per method: its candidates, and of every number the value that was chosen and the values tried."""
    lines = []
    for label, tuning in tunings.items():
        numbers = "; ".join(
            f"{name} {tuning.chosen[name]:.4g} from {_values(values)}" for name, values in tuning.grid.items()
        )
        edge = f"; the budget ended at the edge in {', '.join(tuning.edges)}" if tuning.edges else ""
        spent = f"{len(tuning.table.rows)} candidates of {tuning.rounds} rounds, {tuning.gradients} gradients"
        lines.append(f"{label}: {numbers} ({spent}{edge})")
    return lines


def _values(values: Sequence[float]) -> str:
    if len(values) > FEW:
        return f"{len(values)} values, {np.min(values):.4g} to {np.max(values):.4g}"
    return "{" + ", ".join(f"{value:.4g}" for value in values) + "}"
