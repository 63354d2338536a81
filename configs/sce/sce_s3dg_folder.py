# SCE, S3D-G, 32 frames at 128x128, on a folder of your own videos.
# Paper: none. It is sce_r3d18_folder.py with the network and the clips of other methods in
#        tab:video-sota-action.
# Run:      python tools/train.py configs/sce/sce_s3dg_folder.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/sce/sce_s3dg_folder.py CHECKPOINT --cfg-options \
#               test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 1 GPU; memory not measured. If it does not fit, lower train_dataloader.batch_size.
# Expected: not measured yet.

_base_ = "./sce_r3d18_folder.py"

model = dict(backbone=dict(_delete_=True, type="S3D", gating=True))
train_dataloader = dict(
    dataset=dict(
        pipeline=dict(RandomClips=dict(num_frames=32), RandomResizedCropClips=dict(size=128))
    )
)
evaluation_steps = dict(
    UniformClips=dict(num_frames=32),
    ResizeShortSide=dict(size=146),
    CenterCropClips=dict(size=128),
)
test_dataloader = dict(dataset=dict(pipeline=evaluation_steps))
test_cfg = dict(gallery_dataloader=dict(dataset=dict(pipeline=evaluation_steps)))
del evaluation_steps  # this recipe does not have the setting
