"""How far apart two colours are, to eyes that see all colours and to those without red or green receptors.

CIEDE2000 (Sharma, Wu, Dalal 2005) on what Machado, Oliveira and Fernandes (2009) say such eyes see of a colour.
"""

from __future__ import annotations

from math import atan2, cos, degrees, exp, hypot, radians, sin, sqrt

Triple = tuple[float, float, float]

SEEN: dict[str, tuple[Triple, Triple, Triple]] = {
    "all": ((1.0, 0.0, 0.0), (0.0, 1.0, 0.0), (0.0, 0.0, 1.0)),
    "protan": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deutan": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
}
"""Matrices on linear RGB, for eyes that lack the receptor wholly."""


def _linear(code: str) -> Triple:
    parts = [int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return red, green, blue


def _lab(rgb: Triple) -> Triple:
    red, green, blue = (min(max(one, 0.0), 1.0) for one in rgb)
    x = (0.4124564 * red + 0.3575761 * green + 0.1804375 * blue) / 0.95047
    y = 0.2126729 * red + 0.7151522 * green + 0.0721750 * blue
    z = (0.0193339 * red + 0.1191920 * green + 0.9503041 * blue) / 1.08883

    def f(value: float) -> float:
        return value ** (1 / 3) if value > 216 / 24389 else (24389 / 27 * value + 16) / 116

    return 116 * f(y) - 16, 500 * (f(x) - f(y)), 200 * (f(y) - f(z))


def seen(code: str, eyes: str) -> Triple:
    """A colour "#rrggbb" in CIE Lab as these eyes see it."""
    rgb = _linear(code)
    first, second, third = (sum(one * part for one, part in zip(row, rgb, strict=True)) for row in SEEN[eyes])
    return _lab((first, second, third))


def difference(one: Triple, other: Triple) -> float:
    """CIEDE2000."""
    lightness1, a1, b1 = one
    lightness2, a2, b2 = other
    mean = (hypot(a1, b1) + hypot(a2, b2)) / 2
    stretch = 0.5 * (1 - sqrt(mean**7 / (mean**7 + 25.0**7)))
    a1, a2 = a1 * (1 + stretch), a2 * (1 + stretch)
    chroma1, chroma2 = hypot(a1, b1), hypot(a2, b2)
    hue1, hue2 = degrees(atan2(b1, a1)) % 360, degrees(atan2(b2, a2)) % 360
    turn = 0.0 if chroma1 * chroma2 == 0 else (hue2 - hue1 + 180) % 360 - 180
    delta_hue = 2 * sqrt(chroma1 * chroma2) * sin(radians(turn / 2))
    light, chroma = (lightness1 + lightness2) / 2, (chroma1 + chroma2) / 2
    hue = hue1 + hue2 if chroma1 * chroma2 == 0 else (hue1 + turn / 2) % 360
    shape = (
        1 - 0.17 * cos(radians(hue - 30)) + 0.24 * cos(radians(2 * hue)) + 0.32 * cos(radians(3 * hue + 6))
        - 0.20 * cos(radians(4 * hue - 63))
    )  # fmt: skip
    in_light = 1 + 0.015 * (light - 50) ** 2 / sqrt(20 + (light - 50) ** 2)
    in_chroma, in_hue = 1 + 0.045 * chroma, 1 + 0.015 * chroma * shape
    rotation = -sin(radians(60 * exp(-(((hue - 275) / 25) ** 2)))) * 2 * sqrt(chroma**7 / (chroma**7 + 25.0**7))
    parts = (
        (lightness2 - lightness1) / in_light,
        (chroma2 - chroma1) / in_chroma,
        delta_hue / in_hue,
    )
    return sqrt(sum(part**2 for part in parts) + rotation * parts[1] * parts[2])
