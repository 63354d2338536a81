# Finetuning on NTU RGB+D (60 actions, by performer): R(2+1)D-18, 16 frames at 112x112, all weights.
# Paper:    none with SCE. It is part of the SEVERE benchmark (Thoker et al. 2022), shift of domain.
# Run:      python tools/train.py \
#               configs/downstream/severe/r2plus1d18_1xb64-16x112-180e_ntu60.py \
#               --pretrained work_dirs/sce_r2plus1d18_8xb64-16x112-200e_k400/epoch_200.pth
# Test:     python tools/test.py \
#               configs/downstream/severe/r2plus1d18_1xb64-16x112-180e_ntu60.py \
#               work_dirs/r2plus1d18_1xb64-16x112-180e_ntu60/epoch_180.pth
# Hardware: 1 GPU x 64 videos; memory not measured.
# Expected: not measured yet.

_base_ = "./r2plus1d18_1xb32-32x112-160e_gym99.py"

benchmark = dict(dataset="ntu60", frames=16)
_clip = dict(clip_duration=1.0, num_frames=16)
_lists = dict(data_root="data/ntu60", ann_file="data/ntu60/test_subject.txt")
model = dict(cls_head=dict(num_classes=60))
train_dataloader = dict(
    batch_size=64,
    dataset=dict(
        data_root="data/ntu60",
        ann_file="data/ntu60/train_subject.txt",
        pipeline=dict(RandomClips=_clip),
    ),
)
val_dataloader = dict(dataset=dict(**_lists, pipeline=dict(UniformClips=_clip)))
test_dataloader = dict(dataset=dict(**_lists, pipeline=dict(UniformClips=_clip)))
train_cfg = dict(max_epochs=180)
custom_hooks = [
    dict(
        type="ScheduleHook",
        base_batch_size=64,
        lr=dict(name="multistep", milestone_epochs=(90, 140, 160), factor=0.3),
    ),
]
