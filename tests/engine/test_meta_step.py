"""A whole training step of every method mixes no devices and reads no value on the host.

The steps run on torch's meta device, so that no GPU is needed.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from helpers.meta_device import meta_model, meta_steps

from sce_video.models.algorithms import sce

REPO = Path(__file__).resolve().parents[2]


def _many_passes(model):
    model["backward_per_query"] = True


def _layout(model):
    model["backbone"]["channels_last"] = model["data_preprocessor"]["channels_last"] = True


def _fused(model):
    model["data_preprocessor"]["fused"] = True


def _free_coefficients(model):
    model["lambda_"] = (0.5, 0.5, 0.5)


def _checkpointing(model):
    model["backbone"]["with_cp"] = True


def _shuffled(model):
    model["shuffle_bn_splits"] = 2


def _swav_queue(model):
    model.update(queue_size=8, num_prototypes=4, queue_start_steps=1)


def _dropped_tokens(model):
    model["backbone"]["keep_tokens"] = 0.5


def _teacher(objective):
    return lambda model: model.update(teacher_channels=16, objective=objective)


def _backbone(**settings):
    return lambda model: model.update(backbone=settings)


QUICKSTART = "configs/quickstart/{}_toy_actions.py"
#: Recipe and what is changed in its model, by the name of the case.
CASES = {
    "SCE": ("sce", None),
    "SCE, a backward pass per query": ("sce", _many_passes),
    "SCE, channels_last": ("sce", _layout),
    "SCE, fused augmentation": ("sce", _fused),
    "SCE, free coefficients": ("sce", _free_coefficients),
    "SCE, checkpointing": ("sce", _checkpointing),
    "MoCo, shuffled BN": ("moco", _shuffled),
    "MoCo v3": ("moco_v3", None),
    "ReSSL": ("ressl", None),
    "SimCLR": ("simclr", None),
    "BYOL, a backward pass per query": ("byol", _many_passes),
    "SwAV with a queue": ("swav", _swav_queue),
    "LeJEPA": ("lejepa", None),
    "LeJEPA, ViT with dropped tokens": (
        "configs/lejepa/lejepa_vit_folder_small.py",
        _dropped_tokens,
    ),
    "Distill, cosine": ("configs/distill/distill_r3d18_folder_small.py", _teacher("cosine")),
    "Distill, relations": ("configs/distill/distill_r3d18_folder_small.py", _teacher("relations")),
    "R(2+1)D": ("simclr", _backbone(type="R2Plus1d", depth=18, base_channels=8)),
    "S3D": ("simclr", _backbone(type="S3D")),
    "ResNet2d": ("simclr", _backbone(type="ResNet2d", depth=18, base_channels=8)),
}


def steps_of(name: str) -> list[str]:
    recipe, change = CASES[name]
    path = REPO / (recipe if "/" in recipe else QUICKSTART.format(recipe))
    model, wrapper = meta_model(path, change or (lambda settings: None))
    views = model.data_preprocessor.views or [None, None]
    return meta_steps(model, wrapper, len(views))


@pytest.mark.parametrize("name", CASES)
def test_a_step_stays_on_the_device(name):
    assert steps_of(name) == []


def test_a_queue_on_the_host_is_found():
    model, wrapper = meta_model(REPO / QUICKSTART.format("sce"))
    model.queue.keys = torch.zeros(model.queue.keys.shape)
    with pytest.raises(RuntimeError, match="same device"):
        meta_steps(model, wrapper, views=2)


def test_a_value_read_in_a_loss_is_found(monkeypatch):
    terms = sce.sce_terms

    def reading(*args, **kwargs):
        found = terms(*args, **kwargs)
        found.infonce.mean().item()
        return found

    monkeypatch.setattr(sce, "sce_terms", reading)
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        steps_of("SCE")
