# SCE, R(2+1)D-18, 16 frames at 112x112, on a folder of your own videos.
# Paper: none. It is sce_r3d18_folder.py with the network and the clips of other methods in
#        tab:video-sota-action.
# Run:      python tools/train.py configs/sce/sce_r2plus1d18_folder.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/sce/sce_r2plus1d18_folder.py CHECKPOINT --cfg-options \
#               test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 1 GPU; memory not measured. If it does not fit, lower train_dataloader.batch_size.
# Expected: not measured yet.

_base_ = "./sce_r3d18_folder.py"

model = dict(backbone=dict(_delete_=True, type="R2Plus1d", depth=18))
train_dataloader = dict(
    dataset=dict(
        pipeline=dict(RandomClips=dict(num_frames=16), RandomResizedCropClips=dict(size=112))
    )
)
evaluation_steps = dict(
    UniformClips=dict(num_frames=16),
    ResizeShortSide=dict(size=128),
    CenterCropClips=dict(size=112),
)
test_dataloader = dict(dataset=dict(pipeline=evaluation_steps))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=evaluation_steps)))
del evaluation_steps  # this recipe does not have the setting
