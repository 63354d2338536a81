# Distillation into ResNet3D-18 with 8 channels in the stem, 4 frames at 64x64, on a folder of your
# own videos. The features of a frozen teacher are computed once, for four clips of each video.
# Paper: none. The objectives are 1 - cosine, and SCE's with the teacher's relations as in SEED
#        (arXiv 2101.04731). It uses the optimiser of ../sce/sce_r3d18_folder_small.py and one
#        strong view.
# Run:      sce-video pretrain VIDEOS --method distill --teacher RUN --out STUDENT, or
#           python tools/train.py configs/distill/distill_r3d18_folder_small.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos \
#               teacher_checkpoint=/path/to/teacher.pth
# Test:     python tools/test.py configs/distill/distill_r3d18_folder_small.py CHECKPOINT \
#               --cfg-options test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 2 CPU cores, 4 GB; 2000 steps for up to 320 videos, each of half the time of SCE's.
# Expected: depends on the teacher and the videos.

_base_ = "../sce/sce_r3d18_folder_small.py"

model = dict(
    _delete_=True,
    type="Distill",
    backbone=dict(
        type="ResNet3dSlowPath",
        depth=18,
        base_channels=8,
        channels_last=True,
        zero_init_residual=False,
        with_cp=False,
    ),
    projector=dict(
        type="MLP", hidden_channels=256, num_layers=2, norm_output=False, bias_output=True
    ),
    teacher_channels=64,  # replaced with the teacher's when training starts
    objective="cosine",
    queue_size=256,
    lambda_=0.5,
    tau=0.1,
    tau_m=0.05,
)
teacher_checkpoint = None  # must be set
data_preprocessor = dict(views=[dict(name="strong-alpha", strength=0.5, blur_prob=0.0)])
train_dataloader = dict(
    dataset=dict(
        pipeline=dict(
            # The same clips as for the teacher's features, without RGB differences.
            RandomClips=dict(
                _delete_=True, type="OneOfClips", clip_duration=1.28, num_frames=4, num_clips=4
            )
        )
    )
)
custom_hooks = dict(ScheduleHook=dict(model=None))  # no target, no momentum to schedule

settings = dict(
    teacher=["teacher_checkpoint"],
    teacher_clips=["train_dataloader.dataset.pipeline.OneOfClips.num_clips"],
    objective=["model.objective"],
    clip_duration=[
        "train_dataloader.dataset.pipeline.OneOfClips.clip_duration",
        "test_dataloader.dataset.pipeline.UniformClips.clip_duration",
        "test_cfg.gallery_dataloader.dataset.pipeline.UniformClips.clip_duration",
    ],
    frames=[
        "train_dataloader.dataset.pipeline.OneOfClips.num_frames",
        "test_dataloader.dataset.pipeline.UniformClips.num_frames",
        "test_cfg.gallery_dataloader.dataset.pipeline.UniformClips.num_frames",
    ],
    embedding=[],  # the teacher's feature determines the size
)
