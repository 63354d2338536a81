"""AVA's mAP against known values, a plain loop, and mmaction2's evaluation.

Boxes of the hand-made cases are 10 wide and 10 high unless said. ``at(x)`` begins at ``x``: two of
them ``d`` apart overlap by ``(10 - d) / (10 + d)``, so 3 apart is 7/13 = 0.54, 4 apart 6/14 = 0.43.
"""

import math

import numpy as np
import pytest

from sce_video.datasets.ava import Action
from sce_video.evaluation.functional.frame_map import evaluate_ava, write_result_csv

ACTIONS = (
    Action(1, "bend", True),
    Action(2, "crawl", False),
    Action(3, "kneel", True),
    Action(80, "watch", True),
)


def at(x, y=0.0, width=10.0, height=10.0):
    return [x, y, x + width, y + height]


def scores(*columns, width=80):
    """(n, 80) of ``{action: score}`` a box; -inf elsewhere."""
    table = np.full((len(columns), width), -np.inf)
    for row, given in zip(table, columns, strict=True):
        for action, score in given.items():
            row[action - 1] = score
    return table


def truth(*boxes):
    """Ground truth of a key frame: (box, actions), ..."""
    return np.array([box for box, _ in boxes]).reshape(-1, 4), [actions for _, actions in boxes]


def found(*boxes):
    """Detections of a key frame: (box, {action: score}), ..."""
    return np.array([box for box, _ in boxes]).reshape(-1, 4), scores(*(s for _, s in boxes))


def ap_of_bend(ground_truth, detections):
    return evaluate_ava(ground_truth, detections, ACTIONS).per_class[1]


# -- by hand ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("height", "expected"), [(5.0, 1.0), (4.9, 0.0)])
def test_an_overlap_of_exactly_one_half_is_enough(height, expected):
    """A detection of the box's lower half: IoU 50 / 100."""
    ground_truth = {("film", 902): truth((at(0), [1]))}
    detections = {("film", 902): found((at(0, height=height), {1: 0.9}))}
    assert ap_of_bend(ground_truth, detections) == expected


def test_of_equal_scores_the_later_ranks_first():
    """.5 hit, .5 miss as given; ranked miss, hit: precision 0, 1/2: 1/2. Turned round: 1."""
    ground_truth = {("film", 902): truth((at(0), [1]))}
    hit, miss = (at(0), {1: 0.5}), (at(100), {1: 0.5})
    assert ap_of_bend(ground_truth, {("film", 902): found(hit, miss)}) == 0.5
    assert ap_of_bend(ground_truth, {("film", 902): found(miss, hit)}) == 1.0
    # over key frames: sorted by video and second, however they are given
    both = {("film", 902): truth((at(0), [1])), ("film", 903): truth()}
    one, other = found(hit), found(miss)
    assert ap_of_bend(both, {("film", 902): one, ("film", 903): other}) == 0.5
    assert ap_of_bend(both, {("film", 903): other, ("film", 902): one}) == 0.5


def test_unlisted_key_frames_are_left_out():
    """Second 903 has a false positive of score .9; where it counts, precision is 1/2 at the hit."""
    hit, miss = found((at(0), {1: 0.5})), found((at(100), {1: 0.9}))
    detections = {("film", 902): hit, ("film", 903): miss}
    listed = {("film", 902): truth((at(0), [1]))}
    assert ap_of_bend(listed, detections) == 1.0  # 903 is not in the ground truth
    empty = {**listed, ("film", 903): truth()}  # a key frame without anybody
    assert ap_of_bend(empty, detections) == 0.5
    other = {**listed, ("film", 903): truth((at(0), [2]))}  # and one with unscored actions alone
    assert ap_of_bend(other, detections) == 0.5


@pytest.mark.parametrize(
    ("boxes", "table", "message"),
    [
        ([[0, 0, 1]], np.zeros((1, 80)), r"detected boxes must be \(n, 4\), got \(1, 3\)"),
        ([[0, 0, 1, np.nan]], np.zeros((1, 80)), "coordinate of the detected boxes is not finite"),
        ([[0, 0, 1, 1]], np.zeros((2, 80)), r"must be \(1, 80 or more\)"),
        ([[0, 0, 1, 1]], np.full((1, 80), np.nan), r"a score is NaN or \+inf"),
    ],
)
def test_invalid_detections_raise(boxes, table, message):
    ground_truth = {("film", 902): truth((at(0), [1]))}
    with pytest.raises(ValueError, match="video film, second 902: .*" + message):
        evaluate_ava(ground_truth, {("film", 902): (np.array(boxes), table)}, ACTIONS)


def test_invalid_ground_truth_raises():
    with pytest.raises(ValueError, match="video film, second 902: 1 boxes but 2 lists"):
        evaluate_ava({("film", 902): (np.array([at(0)]), [[1], [3]])}, {}, ACTIONS)
    with pytest.raises(ValueError, match="second 902: a ground-truth box has inverted corners"):
        evaluate_ava({("film", 902): (np.array([[5, 0, 1, 1]]), [[1]])}, {}, ACTIONS)
    with pytest.raises(ValueError, match="none of the actions is scored"):
        evaluate_ava({}, {}, [Action(2, "crawl", False)])


# -- against other programs -------------------------------------------------------------------


def random_set(seed, grid=None, num_actions=12):
    """Key frames of three videos, some empty, some without detections, some not listed.

    Every action has ground truth and detections. Scores are multiples of 1/grid, if given.
    """
    rng = np.random.default_rng(seed)
    actions = [Action(i, f"action {i}", i % 4 != 0) for i in range(1, num_actions + 1)]
    ground_truth, detections = {}, {}
    for video in ("-a", "b", "c_"):
        for second in range(902, 902 + int(rng.integers(8, 14))):
            count, many = int(rng.integers(0, 4)), int(rng.integers(0, 6))
            corners = rng.integers(0, 70, (count, 2))
            boxes = np.concatenate([corners, corners + rng.integers(10, 30, (count, 2))], 1) / 100
            if rng.random() < 0.9:
                some = rng.integers(1, 4, count)
                ground_truth[video, second] = (
                    boxes,
                    [(1 + rng.permutation(num_actions)[:n]).tolist() for n in some],
                )
            if count and many:
                near = boxes[rng.integers(0, count, many)] + rng.integers(-4, 5, (many, 4)) / 100
                table = rng.random((many, 80))
                table = np.ceil(table * grid) / grid if grid else table
                table[rng.random((many, 80)) < 0.2] = -np.inf
                detections[video, second] = near, table
    key = min(ground_truth)
    ground_truth[key] = truth((at(0), list(range(1, num_actions + 1))))
    detections[key] = found((at(1), dict.fromkeys(range(1, num_actions + 1), 0.5)))
    return ground_truth, detections, actions


def loop_ap(ground_truth, detections, action, iou=0.5):
    """The official rules, one detection at a time."""
    listed, count = [], 0
    for key in sorted(ground_truth):
        boxes, labels = ground_truth[key]
        own = [b for b, actions in zip(boxes, labels, strict=True) for a in actions if a == action]
        count += len(own)
        taken = [False] * len(own)
        rows, table = detections.get(key, ((), ()))
        column = [row[action - 1] for row in table]
        is_hit = [False] * len(column)
        for i in sorted(range(len(column)), key=lambda i: -column[i]):  # stable
            x1, y1, x2, y2 = rows[i]
            overlaps = []
            for a1, b1, a2, b2 in own:
                common = max(0, min(x2, a2) - max(x1, a1)) * max(0, min(y2, b2) - max(y1, b1))
                union = (x2 - x1) * (y2 - y1) + (a2 - a1) * (b2 - b1) - common
                overlaps.append(common / union)
            if column[i] > -math.inf and overlaps and max(overlaps) >= iou:
                best = overlaps.index(max(overlaps))
                is_hit[i] = not taken[best]
                taken[best] = True
        listed += [(s, h) for s, h in zip(column, is_hit, strict=True) if s > -math.inf]
    if count == 0:
        return math.nan
    listed = sorted(listed[::-1], key=lambda pair: -pair[0])  # stable: of equal ones the later
    area, points, number = 0.0, [], 0
    for rank, (_, hit) in enumerate(listed, 1):
        number += hit
        points.append((number / count, number / rank))
    last = 0.0
    for i, (recall, _) in enumerate(points):
        area += (recall - last) * max(precision for _, precision in points[i:])
        last = recall
    return area


@pytest.mark.parametrize(("seed", "grid"), [(0, None), (1, 5), (2, 5)])
def test_random_sets_agree_with_a_loop(seed, grid):
    ground_truth, detections, actions = random_set(seed, grid)
    result = evaluate_ava(ground_truth, detections, actions)
    assert set(result.per_class) == {action.id for action in actions if action.scored}
    for action, value in result.per_class.items():
        assert value == pytest.approx(loop_ap(ground_truth, detections, action), abs=1e-12)
    values = list(result.per_class.values())
    assert result.mAP == pytest.approx(np.mean(values)) and len(set(values)) > 5


def drawn(content, videos, draw):
    """The key frames of a draw of videos; one drawn k times is k videos of other names."""
    copies = {}
    for number, video in enumerate(draw):
        copies |= {(f"{number}", t): v for (name, t), v in content.items() if name == videos[video]}
    return copies


@pytest.mark.parametrize("seed", range(2))
def test_resampled_means_agree_with_a_loop(seed):
    ground_truth, detections, actions = random_set(seed)
    ground_truth["d", 902] = truth()  # a video with one false positive, and without people
    detections["d", 902] = found((at(0), dict.fromkeys(range(1, 13), 0.8)))
    scored, videos = [a for a in actions if a.scored], ("-a", "b", "c_", "d")
    draws = np.random.default_rng(0).integers(4, size=(25, 4))
    means = []
    for draw in draws:
        parts = [drawn(content, videos, draw) for content in (ground_truth, detections)]
        values = [loop_ap(*parts, action.id) for action in scored]
        if not np.isnan(values).all():
            means.append(np.nanmean(values))
    result = evaluate_ava(ground_truth, detections, actions, resamples=25)
    assert result.interval == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=1e-12)
    assert result.interval[0] < result.interval[1]
    assert evaluate_ava(ground_truth, detections, actions).interval is None


# -- files ------------------------------------------------------------------------------------


def test_the_official_csv_form(tmp_path):
    path = tmp_path / "found.csv"
    detections = {
        ("b", 1000): found(([0, 0, 0.5, 1], {3: 0.25, 1: 0.5})),
        ("-a", 902): found(([0.125, 0, 1, 1], {1: 1, 2: 0.5}), ([0, 0, 1, 1], {80: 0.001})),
    }
    assert write_result_csv(path, detections, ACTIONS) == 4
    assert path.read_text() == (
        "-a,0902,0.125,0,1,1,1,1\n-a,0902,0,0,1,1,80,0.001\n"
        "b,1000,0,0,0.5,1,1,0.5\nb,1000,0,0,0.5,1,3,0.25\n"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["found.csv"]
