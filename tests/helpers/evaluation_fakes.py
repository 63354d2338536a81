"""A tiny network and a tiny labelled set for the tests of judging: no video, no decoder."""

from __future__ import annotations

import torch
from mmengine.model import BaseDataPreprocessor, BaseModel
from torch import nn
from torch.utils.data import DataLoader, Dataset

from sce_video.registry import DATASETS, FUNCTIONS, MODELS


class ToScale(BaseDataPreprocessor):
    """uint8 (N, T, H, W, 3) views to floats (N, 3, T, H, W) from 0 to 1."""

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
    """``count`` "videos" of V views; label = index % classes, the colour tells the class.

    ``broken`` indices cannot be decoded: they raise, or with ``on_error="skip"`` come without
    ``inputs`` and with a line in ``failures``.
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
    """The batch of the project: views stacked over sound samples, failures in one list."""
    sound = [sample for sample in samples if sample["inputs"] is not None]
    views = zip(*(sample["inputs"] for sample in sound), strict=True)
    return {
        "inputs": [torch.stack(view) for view in views],
        **{
            key: torch.tensor([sample[key] for sample in sound], dtype=torch.long)
            for key in ("label", "index", "seed")
        },
        "failures": [failure for sample in samples for failure in sample["failures"]],
    }


MODELS.register_module(name="TinyEncoder", module=TinyEncoder, force=True)
DATASETS.register_module(name="ColourVideos", module=ColourVideos, force=True)
FUNCTIONS.register_module(name="collate_colours", module=collate, force=True)


def loader(dataset, batch_size=5, **options) -> DataLoader:
    """A plain loader in order."""
    return DataLoader(dataset, batch_size=batch_size, collate_fn=collate, **options)
