"""Tiny networks and labelled data sets for the tests of evaluation: no video, no decoder."""

from __future__ import annotations

import torch
from mmengine.config import Config
from mmengine.model import BaseDataPreprocessor, BaseModel
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sce_video.engine.runner import VideoRunner
from sce_video.inference.multi_view import BatchRows
from sce_video.registry import DATASETS, FUNCTIONS, MODELS


class ToScale(BaseDataPreprocessor):
    """Convert uint8 views (N, T, H, W, 3) to float views (N, 3, T, H, W) from 0 to 1."""

    def forward(self, data, training=False):
        assert training in (True, False)
        views = [view.permute(0, 4, 1, 2, 3).float() / 255 for view in data["inputs"]]
        samples = {"label": data["label"], "index": data["index"]}
        return {"inputs": views, "data_samples": samples}


class TinyEncoder(BaseModel):
    """Mean colour, a linear layer, BN and dropout; the loss draws noise from the global RNG."""

    def __init__(self, channels: int = 8):
        super().__init__(data_preprocessor=ToScale())
        self.backbone = nn.Sequential(nn.Linear(3, channels), nn.BatchNorm1d(channels))
        self.dropout = nn.Dropout(0.5)

    def forward(self, inputs, data_samples=None, mode="tensor"):
        views = [self.dropout(self.backbone(v.mean(dim=(2, 3, 4)))) for v in inputs]
        if mode == "tensor":
            return views
        noise = torch.randn_like(views[0])
        return {"loss": (views[0] - views[-1] + noise).square().mean()}


class ColourVideos(Dataset):
    """``count`` "videos" of V views; the label is ``index % classes`` and sets the colour.

    ``broken`` indices cannot be decoded: they raise, or with ``on_error="skip"`` have no
    ``inputs`` and an entry in ``failures``.
    """

    def __init__(self, count=12, classes=3, views=2, broken=(), on_error="raise"):
        self.paths = [f"person{i // classes}/class{i % classes}.mp4" for i in range(count)]
        self.classes, self.views, self.broken, self.on_error = classes, views, broken, on_error

    def __len__(self):
        return len(self.paths)

    def path(self, index):
        return self.paths[index]

    def __getitem__(self, index):
        index = getattr(index, "index", index) if isinstance(index, tuple) else index
        known = {"label": index % self.classes, "index": index, "seed": index, "failures": []}
        if index in self.broken:
            if self.on_error == "raise":
                raise RuntimeError(f"{self.paths[index]}: cannot be decoded")
            failures = [(self.paths[index], "cannot be decoded")]
            return {**known, "inputs": None, "failures": failures}
        generator = torch.Generator().manual_seed(index)
        views = []
        for _ in range(self.views):
            view = torch.randint(0, 60, (2, 4, 4, 3), generator=generator)
            view[..., known["label"] % 3] += 120
            views.append(view.to(torch.uint8))
        return {**known, "inputs": views}


def collate(samples):
    """A batch as of ``collate_views``: stacked views of the readable samples, and all failures."""
    readable = [sample for sample in samples if sample["inputs"] is not None]
    views = zip(*(sample["inputs"] for sample in readable), strict=True)
    return {
        "inputs": [torch.stack(view) for view in views],
        **{
            key: torch.tensor([sample[key] for sample in readable], dtype=torch.long)
            for key in ("label", "index", "seed")
        },
        "failures": [failure for sample in samples for failure in sample["failures"]],
    }


MODELS.register_module(name="TinyEncoder", module=TinyEncoder, force=True)
DATASETS.register_module(name="ColourVideos", module=ColourVideos, force=True)
FUNCTIONS.register_module(name="collate_colours", module=collate, force=True)


def loader(dataset, batch_size=5, **options) -> DataLoader:
    """A loader in the order of the data set."""
    return DataLoader(dataset, batch_size=batch_size, collate_fn=collate, **options)


class BoxFrames(Dataset):
    """``count`` key frames; frame i has ``i // 2 % 4`` boxes, ``broken`` ones are unreadable."""

    def __init__(self, count, broken=()):
        self.count, self.broken = count, broken

    def __len__(self):
        return self.count

    def path(self, index):
        return f"film{index}.mp4"

    def key(self, index):
        return f"film{index}", 902

    def boxes(self, index):
        """(n, 2), n from 0 to 3; the same at every call."""
        return torch.arange(index // 2 % 4 * 2).reshape(-1, 2) + 10.0 * index

    def row_columns(self, indices):
        return {"key": [self.key(index) for index in indices]}

    def __getitem__(self, index):
        failures = [(self.path(index), "no stream")] if index in self.broken else []
        return {"index": index, "boxes": self.boxes(index), "failures": failures}


def collate_boxes(samples):
    readable = [sample for sample in samples if not sample["failures"]]
    return {
        "index": [sample["index"] for sample in readable],
        "label": [-1] * len(readable),
        "boxes": [sample["boxes"] for sample in readable],
        "failures": [failure for sample in samples for failure in sample["failures"]],
    }


def box_loader(dataset, batch_size, **options) -> DataLoader:
    """A loader of :class:`BoxFrames`."""
    return DataLoader(dataset, batch_size=batch_size, collate_fn=collate_boxes, **options)


def box_rows(model, batch) -> BatchRows:
    """A row function: twice the boxes, in place of the scores of a detector."""
    counts = [len(boxes) for boxes in batch["boxes"]]
    values = 2 * torch.cat(batch["boxes"]) if sum(counts) else torch.empty(0, 0)
    return BatchRows(values, 1, counts=counts)


def data(count, **options) -> dict:
    """Config of a loader of :class:`ColourVideos`."""
    dataset = {"type": "ColourVideos", "count": count, **options}
    collate = {"type": "sce_video.collate_colours"}
    return {"batch_size": 4, "num_workers": 0, "dataset": dataset, "collate_fn": collate}


def runner_of_fakes(work_dir, **settings) -> VideoRunner:
    """A runner of a :class:`TinyEncoder`; the name, unique in mmengine, is that of the folder."""
    settings |= {"model": {"type": "TinyEncoder"}, "randomness": {"seed": 3}}
    settings |= {"default_scope": "sce_video", "log_level": "WARNING", "work_dir": str(work_dir)}
    name = f"{work_dir.parent.name}_{work_dir.name}"
    return VideoRunner.from_cfg(Config({**settings, "experiment_name": name}))
