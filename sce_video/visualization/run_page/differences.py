"""Which differences between runs are within chance, as text and for the comparison's page."""

from __future__ import annotations

from dataclasses import dataclass, field

from sce_video.visualization.run_page.tables import metric_text, number

#: Adjusted p-values below it are called differences.
ALPHA = 0.05


@dataclass(frozen=True)
class SeedMean:
    """A metric of runs that differ in their seed only.

    Attributes:
        group: Name of the runs.
        file: File with the results.
        metric: Name of the metric.
        mean: Over the runs.
        deviation: Standard deviation over the runs (n - 1).
        runs: Number of runs.
    """

    group: str
    file: str
    metric: str
    mean: float
    deviation: float
    runs: int

    @property
    def text(self) -> str:
        """``84.20 % ± 0.35 (3 seeds)``."""
        value = metric_text(self.metric, self.mean)
        percent = value.endswith("%")
        spread = f"{100 * self.deviation:.2f}" if percent else number(self.deviation)
        return f"{value} ± {spread} ({self.runs} seeds)"


@dataclass(frozen=True)
class Difference:
    """A test of two runs, or groups of seeds, on the same videos for one metric.

    Attributes:
        file: File with the results.
        metric: Name of the metric.
        first: Name of a run or group.
        second: Name of the other.
        change: Mean of the second minus that of the first.
        interval: 95 % interval of it; None of one video.
        p_value: Of the test.
        adjusted: The p-value after Holm's correction over the pairs of this metric.
        videos: Number of videos.
        runs: Numbers of runs of the two.
    """

    file: str
    metric: str
    first: str
    second: str
    change: float
    interval: tuple[float, float] | None
    p_value: float
    adjusted: float
    videos: int
    runs: tuple[int, int] = (1, 1)

    @property
    def verdict(self) -> str:
        """``within chance``, or which of the two is better."""
        if self.adjusted >= ALPHA:
            return "within chance"
        return f"{self.second if self.change > 0 else self.first} is better"

    @property
    def points(self) -> str:
        """``+2.10 [-0.40, +4.60]``, in percentage points."""
        ends = ""
        if self.interval is not None:
            ends = f" [{100 * self.interval[0]:+.2f}, {100 * self.interval[1]:+.2f}]"
        return f"{100 * self.change:+.2f}{ends}"

    @property
    def p_text(self) -> str:
        """``0.021`` and, if it was corrected for several pairs, ``0.063`` behind it."""
        plain = _p(self.p_value)
        return plain if self.adjusted == self.p_value else f"{plain}, Holm {_p(self.adjusted)}"


@dataclass(frozen=True)
class Chance:
    """What can be said about the differences of runs.

    Attributes:
        seeds: Means over the seeds of each group of runs.
        differences: Tests of each two runs or groups.
        notes: Sentences on what could not be tested, and why.
    """

    seeds: list[SeedMean] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def scope(self) -> list[str]:
        """Sentences on what the intervals and p-values of the differences cover."""
        runs = [sorted(d.runs) for d in self.differences]
        said = {
            "Of single runs the spread over seeds is not known: interval and p-value tell how the "
            "difference of these two networks depends on the choice of videos, and not what "
            "another seed would give.": any(most == 1 for _, most in runs),
            "Of several seeds interval and p-value cover both other seeds and other videos.": any(
                most > 1 for _, most in runs
            ),
            "Where one of the two is a single run, its spread over seeds is taken to be that of "
            "the other.": any(least == 1 < most for least, most in runs),
        }
        return [sentence for sentence, applies in said.items() if applies]

    def lines(self) -> list[str]:
        """Lines for the terminal."""
        means = [f"{m.group}, {m.metric} of {m.file}: {m.text}" for m in self.seeds]
        tests = [
            f"{d.metric} of {d.file}, {d.first} to {d.second}: {d.points} points, p {d.p_text}: "
            f"{d.verdict}"
            for d in self.differences
        ]
        return [*means, *tests, *self.scope, *self.notes]


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"
