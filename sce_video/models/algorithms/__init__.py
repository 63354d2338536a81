"""Self-supervised methods, one file for each, and other models with a backbone.

All modules in this folder are imported. To add a method, add one file here and one recipe.
"""

from sce_video.models.algorithms.base import SelfSupervisedModel
from sce_video.models.algorithms.byol import BYOL
from sce_video.models.algorithms.distill import Distill
from sce_video.models.algorithms.encoder import ActionDetector, Encoder
from sce_video.models.algorithms.lejepa import LeJEPA
from sce_video.models.algorithms.moco import MoCo
from sce_video.models.algorithms.moco_v3 import MoCoV3
from sce_video.models.algorithms.ressl import ReSSL
from sce_video.models.algorithms.sce import SCE
from sce_video.models.algorithms.simclr import SimCLR
from sce_video.models.algorithms.swav import SwAV
from sce_video.utils.imports import import_submodules

__all__ = [
    "BYOL",
    "SCE",
    "ActionDetector",
    "Distill",
    "Encoder",
    "LeJEPA",
    "MoCo",
    "MoCoV3",
    "ReSSL",
    "SelfSupervisedModel",
    "SimCLR",
    "SwAV",
]

import_submodules(__name__, __path__)
