"""Key frames, their boxes for training and for testing, and invalid lists."""

import json

import numpy as np
import pytest

from sce_video.datasets import AVADataset, read_key_frames
from sce_video.datasets.ava import box_iou

FRAMES = [
    {
        "video": "aa",
        "timestamp": 902,
        "boxes": [[0.1, 0.1, 0.5, 0.9], [0.6, 0.2, 0.9, 0.8]],
        "labels": [[12, 79], [80]],
        "persons": [1, 2],
        # on the first person, half on the second, on no person, on the second with a low score
        "detections": [
            [0.1, 0.1, 0.5, 0.91, 0.99],
            [0.6, 0.2, 0.75, 0.8, 0.95],
            [0.0, 0.0, 0.05, 0.05, 0.92],
            [0.6, 0.2, 0.9, 0.8, 0.5],
        ],
    },
    {"video": "bb", "timestamp": 903, "boxes": [], "labels": [], "detections": []},
    {"video": "aa", "timestamp": 904, "boxes": [[0, 0, 1, 1]], "labels": [[1]], "detections": []},
]


@pytest.fixture
def root(tmp_path):
    (tmp_path / "videos").mkdir()
    (tmp_path / "videos/aa.mkv").write_bytes(b"")
    write(tmp_path, FRAMES)
    return tmp_path


def write(folder, frames):
    (folder / "ava.jsonl").write_text("".join(json.dumps(frame) + "\n" for frame in frames))


def ids(rows):
    return [(np.flatnonzero(row) + 1).tolist() for row in rows]


def test_training_boxes_are_the_ground_truth_and_matching_detections(root):
    data = AVADataset(str(root), "ava.jsonl", training=True)
    assert len(data) == 3 and data.key(0) == ("aa", 902) and data.key(1) == ("bb", 903)
    np.testing.assert_allclose(
        data.boxes(0), [[0.1, 0.1, 0.5, 0.9], [0.6, 0.2, 0.9, 0.8], [0.1, 0.1, 0.5, 0.91]]
    )
    assert ids(data.actions(0)) == [[12, 79], [80], [12, 79]]
    assert len(data.boxes(1)) == 0 and ids(data.actions(2)) == [[1]]
    assert data.path(0).endswith("videos/aa.mkv")


def test_unmatched_detections_are_persons_without_actions_on_request(root):
    """SlowFast's include_negative lists; low scores stay out, and testing is not affected."""
    write(root, [*FRAMES, {**FRAMES[0], "boxes": [], "labels": []}])
    data = AVADataset(str(root), "ava.jsonl", training=True, include_unmatched=True)
    np.testing.assert_allclose(
        data.boxes(0)[2:], [[0.1, 0.1, 0.5, 0.91], [0.6, 0.2, 0.75, 0.8], [0.0, 0.0, 0.05, 0.05]]
    )
    assert ids(data.actions(0)) == [[12, 79], [80], [12, 79], [], []]
    assert [len(data.boxes(i)) for i in (1, 2, 3)] == [0, 1, 3]
    assert ids(data.actions(3)) == [[], [], []]
    test = AVADataset(str(root), "ava.jsonl", include_unmatched=True)
    assert [len(test.boxes(i)) for i in range(4)] == [3, 0, 0, 3]
    assert test.actions(0).sum() == 0
    assert AVADataset(str(root), "ava.jsonl", min_score=0.4).boxes(0).shape == (4, 4)


def test_inputs_of_the_pipeline(root):
    def show(results):
        results["boxes"][:] = 9  # a copy: changes no other sample
        return {"inputs": [results["timestamp"], results["boxes"].shape, results["path"]]}

    data = AVADataset(str(root), "ava.jsonl", pipeline=[show], training=True)
    assert data[0]["inputs"][:2] == [902, (3, 4)] and data[2]["inputs"][:2] == [904, (1, 4)]
    assert data.boxes(0).max() <= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"boxes": [[0.5, 0.1, 0.2, 0.9]], "labels": [[1]]}, r"line 2: the box \[0\.5.* x1 < x2"),
        ({"boxes": [[0.5, 0.1, 1.2, 0.9]], "labels": [[1]]}, "line 2: the box .* all from 0 to 1"),
        ({"boxes": [[0, 0, 1, 1]], "labels": [[81]]}, "line 2: action 81 is not one of 1 to 80"),
        ({"boxes": [[0, 0, 1, 1]], "labels": []}, "line 2 has 1 boxes, but 0 lists of labels"),
        ({"boxes": [[0, 0, 1]], "labels": [[1]]}, "line 2 is not a key frame"),
        ({"timestamp": "noon"}, "line 2 is not a key frame: ValueError"),
    ],
)
def test_invalid_lines_are_named(root, change, message):
    write(root, [FRAMES[0], {**FRAMES[1], **change}])
    with pytest.raises(ValueError, match=message):
        list(read_key_frames(str(root / "ava.jsonl")))


def test_missing_lists_folders_and_videos_are_named(root):
    with pytest.raises(ValueError, match=r"Run sce-video prepare ava"):
        AVADataset(str(root), "none.jsonl")
    with pytest.raises(ValueError, match="no folder .*frames"):
        AVADataset(str(root), "ava.jsonl", folder="frames")
    write(root, [FRAMES[1]])
    with pytest.raises(ValueError, match=r"none of the videos of .*for example 'bb'"):
        AVADataset(str(root), "ava.jsonl")


def test_intersection_over_union_by_hand():
    first = np.array([[0, 0, 2, 2], [0, 0, 1, 1]], dtype=float)
    second = np.array([[1, 1, 3, 3], [0, 0, 2, 2], [5, 5, 6, 6]], dtype=float)
    np.testing.assert_allclose(box_iou(first, second), [[1 / 7, 1, 0], [0, 1 / 4, 0]])
