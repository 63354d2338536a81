"""Alarms: pure detectors on the rows of a log, checks before training, and what reports them."""

from sce_video.engine.alarms.alarm import Alarm, Detector
from sce_video.engine.alarms.detectors import (
    ChanceLevel,
    Collapse,
    DataWait,
    QueueFill,
    RepeatedFrames,
)
from sce_video.engine.alarms.report import report_alarm, report_cleared

__all__ = [
    "Alarm",
    "ChanceLevel",
    "Collapse",
    "DataWait",
    "Detector",
    "QueueFill",
    "RepeatedFrames",
    "report_alarm",
    "report_cleared",
]
