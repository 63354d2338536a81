# Finetuning on 1,000 videos of UCF101: R(2+1)D-18, 32 frames at 112x112, all weights.
# Paper:    none with SCE. It is part of the SEVERE benchmark (Thoker et al. 2022), small training
#           sets.
# Run:      python tools/train.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-160e_ucf101_1000.py \
#               --pretrained work_dirs/sce_r2plus1d18_8xb64-16x112-200e_k400/epoch_200.pth
# Test:     python tools/test.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-160e_ucf101_1000.py \
#               work_dirs/r2plus1d18_1xb32-32x112-160e_ucf101_1000/epoch_160.pth
# Hardware: 1 GPU x 32 videos; memory not measured.
# Expected: not measured yet.
# Data:     sce-video prepare ucf101 data/ucf101 --samples 1000

_base_ = "./r2plus1d18_1xb32-32x112-160e_gym99.py"

benchmark = dict(dataset="ucf101_1000")
model = dict(cls_head=dict(num_classes=101))
train_dataloader = dict(
    dataset=dict(data_root="data/ucf101", ann_file="data/ucf101/train_split1_1000.txt")
)
val_dataloader = dict(dataset=dict(data_root="data/ucf101", ann_file="data/ucf101/test_split1.txt"))
test_dataloader = dict(
    dataset=dict(data_root="data/ucf101", ann_file="data/ucf101/test_split1.txt")
)
