"""How a method looks everywhere: one colour and one dash, the same in the page and in the printed figures."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass

from easgd.report.entry import ReportRun
from easgd.training.select import Choice

# Okabe and Ito's palette for colour-blind eyes, without its yellow, which white paper swallows.
PARTS = {"compute": "#0072b2", "data": "#e69f00", "communication": "#d55e00", "waiting": "#7f7f7f"}
"""Where a worker's time went."""
COLOURS = ("#000000", "#d55e00", "#0072b2", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")
# plotly's dash, as lengths in pixels; () is a whole line.
DASHES: tuple[tuple[int, ...], ...] = ((), (9, 4), (3, 3), (9, 3, 3, 3), (15, 4), (9, 3, 3, 3, 3, 3))


@dataclass(frozen=True)
class Look:
    """Colour and dash of one method's lines."""

    colour: str
    dash: tuple[int, ...]

    @property
    def plotly(self) -> str:
        return ",".join(f"{length}px" for length in self.dash) if self.dash else "solid"

    @property
    def matplotlib(self) -> str | tuple[float, tuple[float, ...]]:
        """The dash in multiples of the line's width, as matplotlib counts."""
        return (0.0, tuple(length / 2.5 for length in self.dash)) if self.dash else "-"


def look_at(place: int) -> Look:
    return Look(COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)])


def looks(choices: Sequence[Choice[ReportRun]]) -> list[Look]:
    """Give every method its look.

    Few methods differ in colour and dash. Where there are more than colours, a colour means a method and a dash means
    one of its settings (τ, p, …), in lighter shades when the dashes are used up.
    """
    if len(choices) <= len(COLOURS):
        return [look_at(COLOURS.index(colour)) for colour in _colours(choices)]
    names: dict[str, int] = {}
    seen: dict[str, int] = {}
    result = []
    for choice in choices:
        name = choice.label if choice.config is None else choice.config.method
        colour = COLOURS[names.setdefault(name, len(names)) % len(COLOURS)]
        variant = seen.get(name, 0)
        seen[name] = variant + 1
        result.append(Look(_lighter(colour, variant // len(DASHES)), DASHES[variant % len(DASHES)]))
    return result


def colour_of(choice: Choice[ReportRun]) -> str | None:
    """Return the colour that a method declares; None where it declares none of the palette."""
    colour = choice.config and choice.config.method_class.colour
    return colour if colour in COLOURS else None


def _colours(choices: Sequence[Choice[ReportRun]]) -> list[str]:
    """Give the first choice of each method the method's own colour, and the others what is left of the palette."""
    own: dict[str, int] = {}
    for place, choice in enumerate(choices):
        if colour := colour_of(choice):
            own.setdefault(colour, place)
    free = iter([colour for colour in COLOURS if colour not in own])
    return [c if (c := colour_of(choice)) and own[c] == i else next(free) for i, choice in enumerate(choices)]


def _lighter(colour: str, times: int) -> str:
    """Move a colour a quarter of the way to white, this many times, but never beyond what paper shows."""
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    hue, light, strength = colorsys.rgb_to_hls(red, green, blue)
    light = min(light + 0.25 * times * (0.75 - light), 0.72) if times else light
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, light, strength))
