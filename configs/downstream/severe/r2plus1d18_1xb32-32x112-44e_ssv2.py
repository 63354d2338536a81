# Finetuning on Something-Something v2: R(2+1)D-18, 32 frames at 112x112, all weights.
# Paper:    none with SCE. It is part of the SEVERE benchmark (Thoker et al. 2022), shift of domain.
# Run:      python tools/train.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-44e_ssv2.py \
#               --pretrained work_dirs/sce_r2plus1d18_8xb64-16x112-200e_k400/epoch_200.pth
# Test:     python tools/test.py \
#               configs/downstream/severe/r2plus1d18_1xb32-32x112-44e_ssv2.py \
#               work_dirs/r2plus1d18_1xb32-32x112-44e_ssv2/epoch_44.pth
# Hardware: 1 GPU x 32 videos; memory not measured.
# Expected: not measured yet. SEVERE's 22 epochs show every video twice. Clips are flipped, as in
# its code for every dataset.

_base_ = "./r2plus1d18_1xb32-32x112-160e_gym99.py"

benchmark = dict(dataset="ssv2")
model = dict(cls_head=dict(num_classes=174))
train_dataloader = dict(dataset=dict(data_root="data/ssv2", ann_file="data/ssv2/train.txt"))
val_dataloader = dict(dataset=dict(data_root="data/ssv2", ann_file="data/ssv2/val.txt"))
test_dataloader = dict(dataset=dict(data_root="data/ssv2", ann_file="data/ssv2/val.txt"))
train_cfg = dict(max_epochs=44, val_interval=2)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=32,
        lr=dict(name="multistep", milestone_epochs=(24, 34, 40), factor=0.3),
    ),
]
