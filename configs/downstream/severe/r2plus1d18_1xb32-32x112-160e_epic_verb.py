# Finetuning on the verbs of EPIC-KITCHENS-100: R(2+1)D-18, 32 frames at 112x112, all weights.
# Paper:    none with SCE. It is part of the SEVERE benchmark (Thoker et al. 2022), shift of domain.
# Run:      python tools/train.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-160e_epic_verb.py \
#               --pretrained work_dirs/sce_r2plus1d18_8xb64-16x112-200e_k400/epoch_200.pth
# Test:     python tools/test.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-160e_epic_verb.py \
#               work_dirs/r2plus1d18_1xb32-32x112-160e_epic_verb/epoch_160.pth
# Hardware: 1 GPU x 32 videos; memory not measured.
# Expected: not measured yet. SEVERE's code has no settings for this set, so the settings of
# FineGym-99 are used.

_base_ = "./r2plus1d18_1xb32-32x112-160e_gym99.py"

benchmark = dict(dataset="epic_verb")
model = dict(cls_head=dict(num_classes=97))
train_dataloader = dict(dataset=dict(data_root="data/epic", ann_file="data/epic/train_verb.txt"))
val_dataloader = dict(dataset=dict(data_root="data/epic", ann_file="data/epic/val_verb.txt"))
test_dataloader = dict(dataset=dict(data_root="data/epic", ann_file="data/epic/val_verb.txt"))
