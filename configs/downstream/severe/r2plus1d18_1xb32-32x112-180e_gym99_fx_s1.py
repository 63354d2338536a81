# Finetuning on the leaps, jumps and hops of FineGym: R(2+1)D-18, 32 frames at 112x112, all weights.
# Paper:    none with SCE. It is part of the SEVERE benchmark (Thoker et al. 2022), similar actions.
# Run:      python tools/train.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-180e_gym99_fx_s1.py \
#               --pretrained work_dirs/sce_r2plus1d18_8xb64-16x112-200e_k400/epoch_200.pth
# Test:     python tools/test.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-180e_gym99_fx_s1.py \
#               work_dirs/r2plus1d18_1xb32-32x112-180e_gym99_fx_s1/epoch_180.pth
# Hardware: 1 GPU x 32 videos; memory not measured.
# Expected: not measured yet.

_base_ = "./r2plus1d18_1xb32-32x112-160e_gym99.py"

benchmark = dict(dataset="gym99_fx_s1")
model = dict(cls_head=dict(num_classes=11))
train_dataloader = dict(dataset=dict(ann_file="data/finegym/train_fx_s1.txt"))
val_dataloader = dict(dataset=dict(ann_file="data/finegym/val_fx_s1.txt"))
test_dataloader = dict(dataset=dict(ann_file="data/finegym/val_fx_s1.txt"))
train_cfg = dict(max_epochs=180)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=32,
        lr=dict(name="multistep", milestone_epochs=(70, 120, 160), factor=0.3),
    ),
]
