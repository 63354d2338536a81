# Finetuning on 1,000 videos of FineGym-99: R(2+1)D-18, 32 frames at 112x112, all weights.
# Paper:    none with SCE. It is part of the SEVERE benchmark (Thoker et al. 2022), small training
#           sets.
# Run:      python tools/train.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-160e_gym99_1000.py \
#               --pretrained work_dirs/sce_r2plus1d18_8xb64-16x112-200e_k400/epoch_200.pth
# Test:     python tools/test.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-160e_gym99_1000.py \
#               work_dirs/r2plus1d18_1xb32-32x112-160e_gym99_1000/epoch_160.pth
# Hardware: 1 GPU x 32 videos; memory not measured.
# Expected: not measured yet.
# Data:     sce-video prepare finegym data/finegym --samples 1000

_base_ = "./r2plus1d18_1xb32-32x112-160e_gym99.py"

benchmark = dict(dataset="gym99_1000")
train_dataloader = dict(dataset=dict(ann_file="data/finegym/train_1000.txt"))
