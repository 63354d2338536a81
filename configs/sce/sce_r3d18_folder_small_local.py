# SCE with local views: two views of 4 frames at 64x64 and two of 2 frames at 32x32, which pass
# through the online branch only. ResNet3D-18 with 8 channels in the stem, on a folder of your own
# videos, for a CPU, small videos or a first look.
# Paper: none for video. It extends the paper's multi-crop on images (tab:sota-multi-crop) to time.
# Run:      python tools/train.py configs/sce/sce_r3d18_folder_small_local.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/sce/sce_r3d18_folder_small_local.py CHECKPOINT \
#               --cfg-options test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 2 CPU cores, 4 GB; 2000 steps for up to 320 videos.
# Expected: not measured yet.

_base_ = "sce_r3d18_folder_small.py"

train_dataloader = dict(
    dataset=dict(
        pipeline=dict(
            # Frames have the same distance as in the global views.
            RandomClips=dict(
                num_views=4, num_local_views=2, local_clip_duration=0.64, local_num_frames=2
            ),
            RandomResizedCropClips=dict(local_size=32, local_area=(0.1, 0.4)),
        )
    )
)
data_preprocessor = dict(
    views=[
        dict(name="strong-alpha", strength=0.5, blur_prob=0.0),
        dict(name="strong-beta", strength=0.5, blur_prob=0.0),
        dict(name="strong-alpha", strength=0.5, blur_prob=0.0),
        dict(name="strong-beta", strength=0.5, blur_prob=0.0),
    ]
)
