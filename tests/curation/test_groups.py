"""Groups of copies: decisions by hand, the best copy, shared parts; and videos of little motion."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from helpers.browser import browser_page, low_contrast
from helpers.tiny_encoder import write_lossless

from sce_video.commands.curate import main
from sce_video.curation.edited_copies import EditedCopy
from sce_video.curation.matching import Alignment, Thumbnails
from sce_video.curation.near_duplicates import Decisions, Removed, connected, grouped, shared_parts
from sce_video.curation.selection import motion_of, read_decisions
from sce_video.datasets.segments import read_segments

from .test_curate import panned, resized
from .test_edited_copies import filmed

_WHOLE = (0.0, 0.0, 1.0, 1.0)


def written(root: Path, shown: dict[str, np.ndarray], fps: int) -> list[str]:
    """Write videos and features that say nothing; the first words of a command line."""
    for name, frames in shown.items():
        frames = frames if frames.ndim == 4 else np.repeat(frames[..., None], 3, axis=3)
        write_lossless(root / "v" / name, frames, fps)
    values = np.random.default_rng(0).normal(size=(len(shown), 6)).astype(np.float32)
    np.savez(root / "f.npz", features=values, paths=[str(root / "v" / name) for name in shown])
    words = [str(root / "f.npz"), "--out", str(root / "out"), "--workers", "0", "--clusters", "2"]
    return [*words, "--overwrite"]


def groups_of(root: Path) -> dict[str, set[str]]:
    """Names of the kept and the removed videos of each group of the report."""
    report = json.loads((root / "out" / "report.json").read_text())
    return {
        Path(group["kept"]).name: {Path(video["path"]).name for video in group["removed"]}
        for group in report["groups"]
    }


@pytest.fixture
def copies(tmp_path):
    """A video, a shorter and larger copy, a small one; another video and its copy."""
    one, two = panned(0), panned(1)
    shown = {
        "a.mp4": one,
        "a, large.mp4": resized(one[4:36], 96),
        "a small.mp4": resized(one, 40),
        "b.mp4": two,
        "b trim.mp4": two[8:36],
        "other.mp4": panned(2),
    }
    return written(tmp_path, shown, 16)


def test_the_best_copy_is_chosen_in_the_order_asked_for(copies, tmp_path):
    for prefer, kept in (
        ("length", "a.mp4"),
        ("resolution", "a, large.mp4"),
        ("bitrate", "a, large.mp4"),
    ):
        assert main([*copies, "--no-page", "--prefer", prefer, "resolution"]) == 0
        assert groups_of(tmp_path)[kept] == {"a.mp4", "a, large.mp4", "a small.mp4"} - {kept}
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    quality = report["groups"][0]["quality"][str(tmp_path / "v" / "a small.mp4")]
    size = (tmp_path / "v" / "a small.mp4").stat().st_size
    assert (quality["width"], quality["height"], quality["duration"]) == (40, 40, 2.5)
    assert quality["bitrate"] == pytest.approx(8 * size / 2.5)


@pytest.mark.parametrize(("width", "dark"), [(1280, False), (390, True)])
def test_decisions_on_the_page_are_respected_by_later_runs(copies, tmp_path, capsys, width, dark):
    assert main([*copies, "--prefer", "length", "resolution"]) == 0
    assert groups_of(tmp_path) == {
        "a.mp4": {"a, large.mp4", "a small.mp4"},
        "b.mp4": {"b trim.mp4"},
    }
    out = tmp_path / "out"

    def decision(page, name: str):
        return page.get_by_label(f"decision on {tmp_path / 'v' / name}", exact=True)

    def saved(page) -> None:
        with page.expect_download() as download:
            page.locator(".save").click()
        download.value.save_as(out / download.value.suggested_filename)

    with browser_page(None, width, 844, dark) as page:
        page.goto((out / "curation.html").as_uri())
        assert page.locator(".save").is_disabled()
        decision(page, "b trim.mp4").select_option("not a copy")
        decision(page, "a.mp4").select_option("remove")
        assert "1 group keeps no video" in page.locator("output").text_content()
        assert page.locator(".save").is_disabled()
        page.get_by_text("Keep the largest frames of each").click()
        values = [
            decision(page, f"{name}.mp4").input_value() for name in ("a", "a, large", "b trim")
        ]
        assert values == ["remove", "keep", "not a copy"]
        assert low_contrast(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        saved(page)
    found = read_decisions(out / "decisions.csv")
    names = {Path(path).name for path in found.keep}
    assert names == {"a, large.mp4", "b.mp4"} and len(found.apart) == 2
    assert main(copies) == 0
    assert groups_of(tmp_path) == {"a, large.mp4": {"a.mp4", "a small.mp4"}}
    with browser_page(None, width, 844, dark) as page:  # what was decided is not lost
        page.goto((out / "curation.html").as_uri())
        page.get_by_text("3 videos · decided").wait_for()
        decision(page, "a.mp4").select_option("keep")
        saved(page)
    assert main(copies) == 0
    assert groups_of(tmp_path) == {"a.mp4": {"a small.mp4"}}
    assert read_decisions(out / "decisions.csv").apart == found.apart
    capsys.readouterr()
    elsewhere = tmp_path / "decisions.csv"
    elsewhere.write_text("path,decision,other\ngone.mp4,keep,\n")
    assert main([*copies, "--no-page", "--decisions", str(elsewhere)]) == 0
    assert "1 of 1 videos with a decision are not in the source" in capsys.readouterr().out
    assert groups_of(tmp_path)["b.mp4"] == {"b trim.mp4"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\na,1\n", "the first line must be path,decision,other"),
        ("path,decision,other\na.mp4,delete,\n", "line 2: the decision is 'delete'"),
        ("path,decision,other\na.mp4,not a copy,\n", "line 2: the decision names no other video"),
        ("path,decision,other\n,keep,\n", "line 2: expected a path, a decision"),
    ],
)
def test_a_wrong_file_of_decisions_is_refused(copies, tmp_path, capsys, text, message):
    (tmp_path / "decisions.csv").write_text(text)
    assert main([*copies, "--decisions", str(tmp_path / "decisions.csv")]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error
    assert not (tmp_path / "out").exists()


def test_no_group_holds_two_videos_that_are_apart():
    rng = np.random.default_rng(0)
    for _ in range(30):
        pairs = {
            tuple(sorted(pair))
            for pair in rng.integers(0, 12, (14, 2)).tolist()
            if pair[0] != pair[1]
        }
        edges = {(a, b): Removed(a, b, float(rng.uniform())) for a, b in sorted(pairs)}
        apart: dict[str, set[str]] = {}
        for one, two in rng.integers(0, 12, (6, 2)).tolist():
            if one != two:
                apart.setdefault(str(one), set()).add(str(two))
                apart.setdefault(str(two), set()).add(str(one))
        paths = [str(row) for row in range(12)]
        groups = grouped(edges, lambda row: (row,), paths, Decisions(frozenset("3"), apart))
        of_row = {}
        for number, group in enumerate(groups):
            rows = [group.kept, *group.also_kept, *(video.row for video in group.removed)]
            assert not any(str(b) in apart.get(str(a), ()) for a in rows for b in rows)
            assert all(video.match in rows and video.row != 3 for video in group.removed)
            of_row |= dict.fromkeys(rows, number)
        for (a, b), edge in edges.items():  # what is not joined would bring two together
            if of_row.get(a, a + 100) != of_row.get(b, b + 100):
                one = [r for r in range(12) if of_row.get(r, r + 100) == of_row.get(a, a + 100)]
                two = [r for r in range(12) if of_row.get(r, r + 100) == of_row.get(b, b + 100)]
                assert any(str(y) in apart.get(str(x), ()) for x in one for y in two), edge
        reached = {row: {row} for pair in pairs for row in pair}
        for _ in range(12):
            for a, b in pairs:
                reached[a] = reached[b] = reached[a] | reached[b]
        expected = {tuple(sorted(rows)) for rows in reached.values()}
        assert connected(sorted(pairs)) == sorted(map(list, expected))


def shown_by(rows: list[tuple[int, float, float]]) -> dict[tuple[int, int], Removed]:
    """Edges of every two of some videos that show the same, of each its begin and end."""
    edges = {}
    for i, (one, *own) in enumerate(rows):
        for two, *other in rows[i + 1 :]:
            copy = EditedCopy(
                one, two, Alignment(0.9, 0.0, _WHOLE), False, 1.0, tuple(own), tuple(other)
            )
            edges[one, two] = Removed(one, two, 0.9, edited=copy)
    return edges


def test_a_part_of_many_videos_makes_no_copies():
    ends = dict.fromkeys(range(20), 20.0) | {12: 5.0}
    intro = shown_by([(row, 0.3 * row, 0.3 * row + 5) for row in range(6)] + [(12, 0.0, 5.0)])
    whole = shown_by([(row, 0.0, 20.0) for row in (0, 6, 7, 8, 9, 10, 11)])
    few = shown_by([(13, 0.0, 5.0), (14, 10.0, 15.0)])
    edges = intro | whole | few
    (part,) = shared_parts(edges, ends, 5)
    assert edges == whole | few, "copies stay, however many they are"
    assert [row for row, _, _ in part.stretches] == [*range(6), 12]
    assert part.stretches[2] == (2, pytest.approx(0.6), pytest.approx(5.6))
    edges = dict(intro)
    assert shared_parts(edges, ends, 6) == [] and edges == intro
    moved = Removed(0, 1, 0.98, Alignment(0.98, -12.0, _WHOLE))  # 1 begins in 0 at 12 s
    edges = {(0, 1): moved}
    (part,) = shared_parts(edges, {0: 20.0, 1: 30.0}, 1)
    assert part.stretches == [(0, 12.0, 20.0), (1, 0.0, 8.0)] and edges == {}


def test_the_command_finds_an_intro(tmp_path, capsys):
    intro = filmed(50, 4.0)
    shown = {f"{i}.mp4": np.concatenate([intro, filmed(60 + i, 6.0)]) for i in range(4)}
    shown["copy.mp4"] = shown["1.mp4"][6:]
    words = written(tmp_path, shown, 12)
    assert main([*words, "--copies", "short", "--no-page"]) == 0
    assert (
        len(groups_of(tmp_path)) == 1 and "4 near-duplicates in 1 groups" in capsys.readouterr().out
    )
    assert main([*words, "--copies", "short", "--intros", "3"]) == 0
    assert groups_of(tmp_path) == {"1.mp4": {"copy.mp4"}}
    assert "1 shared parts (intros, credits)" in capsys.readouterr().out
    segments = {Path(s.path).name: s for s in read_segments(str(tmp_path / "out" / "intros.csv"))}
    assert set(segments) >= set(shown) - {"copy.mp4"}
    for name in ("0.mp4", "2.mp4", "3.mp4"):
        assert (segments[name].start, segments[name].end) == pytest.approx((0, 4), abs=0.5)
    assert "occur in more than 3 videos" in (tmp_path / "out" / "curation.html").read_text()


def test_motion_equals_that_of_a_loop():
    rng = np.random.default_rng(0)
    frames = rng.integers(0, 256, (50, 32, 32)).astype(np.uint8)
    frames[20:40] = frames[20]
    times = np.sort(rng.uniform(0, 5, 50))
    times[0] = 0
    video = Thumbnails(frames, times, 5.2, 32, 32)
    steps, before = [], None
    for k in range(11):
        shown = max(i for i in range(50) if times[i] <= 0.5 * k + 1e-9)
        if before is not None:
            steps.append(np.abs(frames[shown].astype(float) - frames[before]).mean())
        before = shown
    motion, frozen = motion_of(video)
    assert motion == pytest.approx(np.mean(steps)) and frozen == np.mean(np.array(steps) < 0.5) > 0
    short = Thumbnails(frames[:2], np.array([0.0, 0.1]), 0.2, 32, 32)
    assert motion_of(short)[0] == pytest.approx(np.abs(frames[1].astype(float) - frames[0]).mean())
    assert motion_of(Thumbnails(frames[:1], np.zeros(1), 9.0, 32, 32)) == (0.0, 1.0)


def test_still_and_frozen_videos_are_removed(tmp_path, capsys):
    shown = {f"{i}.mp4": filmed(i) for i in range(8)}
    shown["frozen.mp4"] = np.repeat(filmed(20)[:1], 40, axis=0)
    slow = filmed(21)
    shown["slow.mp4"] = np.repeat(slow[:10], 6, axis=0)
    words = written(tmp_path, shown, 12)
    assert main([*words, "--duplicates", "none", "--motion", "0"]) == 0
    with open(tmp_path / "out" / "removed.csv", newline="") as file:
        (row,) = csv.DictReader(file)
    assert Path(row["path"]).name == "frozen.mp4"
    assert row["reason"].startswith("frozen: 0.000 grey levels, limit 0.000")
    assert main([*words, "--motion", "0.15"]) == 0
    assert "2 removed because of little motion: below" in capsys.readouterr().out
    with open(tmp_path / "out" / "motion.csv", newline="") as file:
        motion = {
            Path(r["path"]).name: (float(r["motion"]), float(r["frozen"]))
            for r in csv.DictReader(file)
        }
    assert motion["frozen.mp4"] == (0, 1) and len(motion) == 10
    assert sorted(motion, key=lambda name: motion[name])[1] == "slow.mp4"
    html = (tmp_path / "out" / "curation.html").read_text()
    assert "removed for little motion" in html and "quantile 0.15" in html
    kept = tmp_path / "kept.csv"
    kept.write_text(f"path,decision,other\n{tmp_path / 'v' / 'frozen.mp4'},keep,\n")
    assert main([*words, "--motion", "--no-page", "--decisions", str(kept)]) == 0
    assert "frozen.mp4" in (tmp_path / "out" / "keep.txt").read_text()
    capsys.readouterr()
    still = {f"{i}.mp4": np.repeat(filmed(i)[:1], 30, axis=0) for i in range(3)}
    assert main([*written(tmp_path / "still", still, 12), "--motion"]) == 2
    assert "nothing moves in any video of" in capsys.readouterr().err
    assert main([*words, "--motion", "1.5"]) == 2
    assert "must be at least 0 and at most 0.99" in capsys.readouterr().err
