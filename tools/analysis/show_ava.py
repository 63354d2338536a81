r"""Draw persons and their actions on a key frame of AVA or on any other video.

    python tools/analysis/show_ava.py CONFIG CHECKPOINT --key VIDEO_ID,SECOND --out frame.png
    python tools/analysis/show_ava.py CONFIG CHECKPOINT --video my.mp4 --at 3.5 \
        --boxes 0.1,0.2,0.5,0.95 0.6,0.1,0.9,0.9 --out clip.mp4

The extension of --out selects the output. .png and .jpg write one frame, and .mp4 writes two
seconds around it. With --key, the boxes are the person detections of the test list, and each
caption includes the annotated actions as "true: ...". The config names files and lists, and
--cfg-options changes them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np

from sce_video.datasets.ava import Action, box_iou, read_actions, read_key_frames
from sce_video.datasets.clip_sampling import shown_at
from sce_video.datasets.readers import open_reader
from sce_video.datasets.readers.images import FrameFolderReader
from sce_video.engine.config.load import load_config
from sce_video.inference.person_actions import load_action_model, score_boxes
from sce_video.pages.gallery import encode_clip
from sce_video.registry import DATASETS
from sce_video.utils.command import command
from sce_video.utils.files import write_bytes

#: RGB colour of each person.
_COLOURS = ((66, 165, 245), (255, 167, 38), (102, 187, 106), (236, 64, 122), (171, 71, 188))
_FONT = cv2.FONT_HERSHEY_SIMPLEX
_ASCII = {ord(c): "?" for c in map(chr, range(128, 256))}


class Moment(NamedTuple):
    """A moment of a video and its boxes. ``true`` contains the annotated actions of each box."""

    path: str
    second: float
    begins_at: float
    boxes: np.ndarray
    true: list[list[str]]


def read_moment(
    path: str | Path, second: float, around: float = 0.0
) -> tuple[list[np.ndarray], float]:
    """Read the frame at a second of a file or a folder of frames, or all frames around it.

    Args:
        path: The file.
        second: Counted from the beginning of the file.
        around: Seconds before and after; 0 for a single frame.

    Returns:
        Frames (H, W, 3) uint8 RGB, and the frame rate in frames per second.
    """
    reader = FrameFolderReader(str(path)) if Path(path).is_dir() else open_reader(str(path))
    with reader:
        rate = len(reader.timestamps) / reader.duration
        times = np.array([second])
        if around > 0:
            times = np.arange(max(0.0, second - around), second + around, 1 / rate)
        # Do not use frames_played_at, which repeats the last frame beyond the end of the video.
        batch = reader.frames_at(shown_at(reader.timestamps, times))
    return list(batch.frames.numpy()), rate


def parse_args(argv: list[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(
        description="Draw boxes around people, with their predicted actions."
    )
    parser.add_argument("config", help="a recipe of configs/downstream/detection")
    parser.add_argument("checkpoint", help="a checkpoint trained by this recipe")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--key", metavar="VIDEO_ID,SECOND", help="a key frame of the test list")
    what.add_argument("--video", help="a video of your own")
    parser.add_argument("--at", type=float, help="with --video: time of the frame, in seconds")
    parser.add_argument(
        "--boxes",
        nargs="+",
        default=[],
        metavar="X1,Y1,X2,Y2",
        help="with --video: boxes of people, as fractions of the frame's width and height",
    )
    parser.add_argument(
        "--out",
        required=True,
        help="file to write: .png or .jpg for the frame, .mp4 for a second before and after it",
    )
    parser.add_argument(
        "--actions", help="path of ava_actions.json (default: the one in the config)"
    )
    parser.add_argument(
        "--top", type=int, default=3, help="number of actions for each person (default: 3)"
    )
    parser.add_argument("--cfg-options", nargs="+", default=[], metavar="KEY=VALUE")
    return parser.parse_args(argv)


def moment_of_video(args: argparse.Namespace) -> Moment:
    """Return the moment and boxes given on the command line."""
    if args.at is None or not args.boxes:
        raise ValueError("--video needs --at SECOND and --boxes X1,Y1,X2,Y2 [...]")
    try:
        boxes = np.array([[float(v) for v in box.split(",")] for box in args.boxes])
        boxes = boxes.reshape(-1, 4)
    except ValueError:
        raise ValueError(f"--boxes takes four numbers each, x1,y1,x2,y2: {args.boxes}") from None
    return Moment(args.video, args.at, 0.0, boxes, [[] for _ in boxes])


def moment_of_key_frame(args: argparse.Namespace, actions: list[Action]) -> Moment:
    """Return the detections of a key frame, each with its annotated box's actions."""
    cfg = load_config(args.config, args.cfg_options)
    dataset = DATASETS.build({**cfg.test_dataloader.dataset, "pipeline": []})
    video, _, second = args.key.partition(",")
    wanted = (video, int(second)) if second.isdecimal() else None
    found = [i for i in range(len(dataset)) if dataset.key(i) == wanted]
    if not found:
        raise ValueError(f"{args.key!r} is not a key frame of {dataset.ann_file} (VIDEO_ID,SECOND)")
    frame = next(f for f in read_key_frames(dataset.ann_file) if (f.video, f.timestamp) == wanted)
    names = {action.id: action.name for action in actions}
    boxes, true = dataset.boxes(found[0]), []
    for row in box_iou(boxes, frame.boxes) if len(frame.boxes) else np.zeros((len(boxes), 0)):
        own = frame.actions[int(row.argmax())] if len(row) and row.max() >= 0.5 else []
        true.append([names.get(i, str(i)) for i in own])
    steps = [s for s in cfg.test_dataloader.dataset.pipeline if s["type"] == "KeyFrameClip"]
    begins_at = steps[0].get("begins_at", 900.0)
    return Moment(dataset.path(found[0]), frame.timestamp, begins_at, boxes, true)


def top_actions(scores: np.ndarray, actions: Sequence[Action], count: int = 3) -> list[str]:
    """Return the highest-scoring actions of one person, as ``stand 0.93``, best first.

    ``scores`` are probabilities (80,). Action ``id`` is entry ``id - 1``.
    """
    ranked = sorted(actions, key=lambda action: -scores[action.id - 1])[:count]
    return [f"{action.name} {scores[action.id - 1]:.2f}" for action in ranked]


def draw_boxes(
    frame: np.ndarray, boxes: np.ndarray, captions: Sequence[Sequence[str]]
) -> np.ndarray:
    """Return a copy of a frame with boxes and captions, of even height and width.

    Args:
        frame: (H, W, 3) uint8 RGB. It is enlarged to a short side of 480 pixels if it is smaller,
            to keep text readable.
        boxes: (n, 4), x1 y1 x2 y2 from 0 to 1.
        captions: Lines of text for each of the n boxes.
    """
    height, width = frame.shape[:2]
    scale = max(1.0, 480 / min(height, width))
    size = (round(width * scale) // 2 * 2, round(height * scale) // 2 * 2)
    image = cv2.resize(frame, size, interpolation=cv2.INTER_CUBIC)
    letters = max(0.4, min(size) / 900)
    line = int(30 * letters) + 4
    taken: list[tuple[int, int, int, int]] = []
    for number, (box, lines) in enumerate(zip(boxes, captions, strict=True)):
        colour = _COLOURS[number % len(_COLOURS)]
        x1, y1, x2, y2 = (round(float(v) * size[i % 2]) for i, v in enumerate(box))
        cv2.rectangle(image, (x1, y1), (x2, y2), colour, max(2, round(3 * letters)))
        texts = [text.translate(_ASCII) for text in lines]
        if not texts:
            continue
        wide = max(cv2.getTextSize(t, _FONT, letters, 1)[0][0] for t in texts) + 8
        left = max(0, min(x1, size[0] - wide))
        top = max(0, min(y1, size[1] - line * len(texts) - 4))
        tall = line * len(texts)
        while any(left < x + w and x < left + wide and top < y + h and y < top + tall
                  for x, y, w, h in taken):  # fmt: skip
            top += line  # below the captions drawn so far
        taken.append((left, top, wide, tall))
        shade = image[top : top + tall + 4, left : left + wide]
        shade[...] = shade // 4
        for i, text in enumerate(texts):
            origin = (left + 4, top + line * (i + 1) - 6)
            cv2.putText(image, text, origin, _FONT, letters, colour, 1, cv2.LINE_AA)
    return image


def show(args: argparse.Namespace) -> str:
    """Score, draw and write, and return the persons' actions as text."""
    kind = Path(args.out).suffix.lower()
    if kind not in (".png", ".jpg", ".mp4"):
        raise ValueError(f"--out must end in .png, .jpg or .mp4, got {args.out}")
    cfg = load_config(args.config, args.cfg_options)
    actions = list(read_actions(args.actions or cfg.test_evaluator[0].actions))
    moment = moment_of_video(args) if args.video else moment_of_key_frame(args, actions)
    model = load_action_model(args.config, args.checkpoint, args.cfg_options)
    scores = score_boxes(model, moment.path, moment.second, moment.boxes, moment.begins_at)
    captions = [top_actions(row, actions, args.top) for row in scores]
    drawn = [
        [*lines, *([f"true: {', '.join(true)}"] if true else [])]
        for lines, true in zip(captions, moment.true, strict=True)
    ]
    around = 1.0 if kind == ".mp4" else 0.0
    frames, rate = read_moment(moment.path, moment.second - moment.begins_at, around)
    images = [draw_boxes(frame, moment.boxes, drawn) for frame in frames]
    if kind == ".mp4":
        write_bytes(args.out, encode_clip(images, rate, crf=23))
    else:
        _, encoded = cv2.imencode(kind, cv2.cvtColor(images[0], cv2.COLOR_RGB2BGR))
        write_bytes(args.out, encoded.tobytes())
    lines = [
        f"person {i + 1}, box {[round(float(v), 2) for v in box]}: {'; '.join(text)}"
        for i, (box, text) in enumerate(zip(moment.boxes, drawn, strict=True))
    ]
    return "\n".join([*lines, f"drawn: {args.out}"])


@command
def main(argv: list[str] | None = None) -> int:
    """Draw, and return the exit status."""
    args = parse_args(argv)
    print(show(args))
    return 0


if __name__ == "__main__":
    sys.exit(main())
