"""How pictures look: a light and a dark theme, in colours that colour-blind readers can tell."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tiderl_jax.report.sums import Doing, Loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito (2008), "Color Universal Design": distinguishable with every kind of colour vision.
BLUE, SKY, GREEN, YELLOW = "#0072B2", "#56B4E9", "#009E73", "#F0E442"
ORANGE, VERMILION, PURPLE, GREY = "#E69F00", "#D55E00", "#CC79A7", "#8A8F98"
BROWN = "#7F4F24"
CYCLE = (BLUE, ORANGE, GREEN, PURPLE, SKY, VERMILION, GREY, YELLOW)

COLOUR_OF_DOING: dict[str, str] = {
    Doing.DECODING: BLUE,
    Doing.ENVIRONMENTS: ORANGE,
    Doing.STALENESS: PURPLE,
    Doing.WEIGHTS: SKY,
    Doing.SCHEDULER: VERMILION,
    Doing.NOT_ADMITTED: GREY,
    Doing.TRAINER: GREEN,
    Doing.MOVING: YELLOW,
    Doing.LOST: BROWN,
}
COLOUR_OF_LOSS: dict[str, str] = {
    Loss.ZERO_ADVANTAGE: SKY,
    Loss.STALE: PURPLE,
    Loss.OVER_BOUND: YELLOW,
    Loss.TRIMMED: GREEN,
    Loss.LATE: BLUE,
    Loss.REDUNDANT: BROWN,
    Loss.ENV_ERROR: ORANGE,
    Loss.ENGINE_ERROR: VERMILION,
    Loss.UNFINISHED: GREY,
}
DOING_IN_WORDS: dict[str, str] = {
    Doing.DECODING: "decoding",
    Doing.ENVIRONMENTS: "environments working",
    Doing.STALENESS: "held for staleness",
    Doing.WEIGHTS: "weights loading",
    Doing.SCHEDULER: "turn ready, not run",
    Doing.NOT_ADMITTED: "nothing admitted",
    Doing.TRAINER: "in the trainer's hands",
    Doing.MOVING: "taking another role",
    Doing.LOST: "lost",
}


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours of everything that carries no data."""

    name: str
    background: str
    text: str
    grid: str


LIGHT = Theme("light", background="#ffffff", text="#24292f", grid="#e3e6ea")
DARK = Theme("dark", background="#161b22", text="#d7dde4", grid="#30363d")


@contextmanager
def canvas(theme: Theme, width: float, height: float) -> Iterator["Figure"]:
    """A figure of this size in inches, in the theme, without a window or any global state left."""
    import matplotlib as mpl  # late: half a second, and only reports need it
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    settings = {
        "axes.axisbelow": True,
        "axes.edgecolor": theme.grid,
        "axes.facecolor": theme.background,
        "axes.grid": True,
        "axes.labelcolor": theme.text,
        "axes.prop_cycle": mpl.cycler(color=CYCLE),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": theme.text,
        "axes.titlelocation": "left",
        "axes.titlesize": 11,
        "axes.titleweight": "bold",
        "figure.facecolor": theme.background,
        "font.size": 10,
        "grid.color": theme.grid,
        "grid.linewidth": 0.8,
        "legend.frameon": False,
        "legend.fontsize": 9,
        "legend.labelcolor": theme.text,
        "lines.linewidth": 1.8,
        "lines.solid_capstyle": "round",
        "text.color": theme.text,
        "text.parse_math": False,  # names are text, never formulas
        "xtick.color": theme.text,
        "ytick.color": theme.text,
    }
    with mpl.rc_context(settings):
        figure = Figure(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(figure)
        yield figure
