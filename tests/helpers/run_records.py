"""Facts of small runs for the tests of their pages."""

from __future__ import annotations

import math
from typing import Any

from sce_video.pages.run_record import RunRecord

HOSTILE = "</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"


def rows_of(count: int, **more: float) -> list[dict[str, Any]]:
    """``count`` logged rows, each of 10 steps, four epochs in all."""
    return [
        {
            "iter": 10 * (i + 1),
            "epoch": 1 + 4 * i // count,
            "loss": 4.0 - 2 * i / count + 0.1 * math.sin(i),
            "infonce": 4.1 - 2 * i / count,
            "lr": 0.1 * i,
            "momentum": 0.9 + 0.1 * i / count,
            "h_rank": 5.0 + i / count,
            "h_std": 0.5 - i / count / 10,
            "data_wait": 0.1,
            "videos_per_s": 100.0 + i % 7,
            "step_seconds": 0.5,
            **more,
        }
        for i in range(count)
    ]


def record_of(rows: list[dict[str, Any]] | None = None, **changes: Any) -> RunRecord:
    """A finished run of four epochs; ``changes`` are fields of it, or further logged values."""
    fields = set(RunRecord.__dataclass_fields__)
    more = {name: value for name, value in changes.items() if name not in fields}
    values: dict[str, Any] = {
        "name": "run",
        "folder": "/runs/run",
        "config": {"model": {"type": "SCE"}, "train_cfg": {"max_epochs": 4}},
        "scalars": rows_of(4, **more) if rows is None else rows,
        "evaluations": [
            {"iter": 10, "epoch": 1, "knn_top1": 0.4, "effective_rank": 5.0},
            {"iter": 40, "epoch": 4, "knn_top1": 0.6, "effective_rank": 9.0},
        ],
        "chance": 3.5,
    }
    return RunRecord(**{**values, **{k: v for k, v in changes.items() if k in fields}})
