"""Pretraining that chooses its settings for the given videos and machine."""

from sce_video.apis.automatic.choices import Choice, choose
from sce_video.apis.automatic.folder_facts import FolderFacts, examine_folder
from sce_video.apis.automatic.machine import Machine, this_machine
from sce_video.apis.automatic.pretrain import methods, planned_pretraining, pretrain
from sce_video.apis.automatic.seeds import SeedRuns, pretrain_seeds

__all__ = [
    "Choice",
    "FolderFacts",
    "Machine",
    "SeedRuns",
    "choose",
    "examine_folder",
    "methods",
    "planned_pretraining",
    "pretrain",
    "pretrain_seeds",
    "this_machine",
]
