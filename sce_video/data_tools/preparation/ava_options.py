"""Options of the preparation of AVA, and the layout of its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

LAYOUT = """\
  annotations/ava_{train,val}_v2.2.csv                (or directly in the folder)
  annotations/ava_action_list_v2.2_for_activitynet_2019.pbtxt
  annotations/ava_action_list_v2.2.pbtxt              (all 80 actions; optional)
  annotations/ava_{train,val}_excluded_timestamps_v2.2.csv
  annotations/ava_{train,val}_predicted_boxes.csv     (person detections of SlowFast), or
  annotations/ava_dense_proposals_{train,val}.FAIR.recall_93.9.pkl             (of mmaction2)
  videos/1j20qq1JyX4.mkv        (or videos_15min/: cut by ffmpeg -ss 900 -t 901; or full films)
  frames/1j20qq1JyX4/1j20qq1JyX4_000001.jpg           (or rawframes/: 30 per second of the cuts)"""


@dataclass(frozen=True)
class AvaOptions:
    """Options of a preparation.

    Attributes:
        root: Folder of the data set.
        annotations: Folder of the official files; ``root/annotations`` or ``root`` unless given.
        detections: Files of person detections; those of :data:`LAYOUT` unless given.
        without_detections: Use no detections.
        min_score: Detections with a lower score are left out.
        videos: Folder of the videos, ``root/videos`` or ``root/videos_15min`` unless given.
        frames: Folder of the frame folders, used instead of videos.
        out: Folder of the lists, ``root`` if None.
        workers: Processes that check whether videos can be read; None for all cores.
        time_limit: Seconds a video may take.
        ray: Address of a Ray cluster that checks them.
        check: Open the videos and frame folders; otherwise only check that they exist.
        keep_missing: Keep key frames without images in the lists.
        skip_frameless: Leave out key frames outside of their video, instead of an error.
        unannotated: Also list key frames of val with detections but without ground truth.
        force: Replace lists that differ.
    """

    root: Path
    annotations: Path | None = None
    detections: tuple[Path, ...] = ()
    without_detections: bool = False
    min_score: float = 0.9
    videos: Path | None = None
    frames: Path | None = None
    out: Path | None = None
    workers: int | None = 1
    time_limit: float = 60.0
    ray: str | None = None
    check: bool = True
    keep_missing: bool = False
    skip_frameless: bool = False
    unannotated: bool = False
    force: bool = False

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers must be at least 1, got {self.workers}")
        if not 0 <= self.min_score <= 1:
            raise ValueError(f"min_score must be from 0 to 1, got {self.min_score}")
        if self.videos is not None and self.frames is not None:
            raise ValueError("give a folder of videos or a folder of frames, not both")
        if self.detections and self.without_detections:
            raise ValueError("give files of detections, or without_detections, not both")
