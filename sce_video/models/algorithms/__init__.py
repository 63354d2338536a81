"""Self-supervised methods, one readable file each, and models around a backbone.

Every module of this folder is imported, so a new method is one file here and a recipe.
"""

from sce_video.models.algorithms.action_detector import ActionDetector
from sce_video.models.algorithms.base import SelfSupervisedModel
from sce_video.models.algorithms.byol import BYOL
from sce_video.models.algorithms.encoder import Encoder
from sce_video.models.algorithms.sce import SCE
from sce_video.models.algorithms.swav import SwAV
from sce_video.utils.imports import import_submodules

__all__ = ["BYOL", "SCE", "ActionDetector", "Encoder", "SelfSupervisedModel", "SwAV"]

import_submodules(__name__, __path__)
