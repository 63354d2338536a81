# LeJEPA, the vision transformer of lejepa_vit_folder_small.py with tokens of single frames: twice
# as many, of which a training step computes only 5 %.
# Paper:    none with this network. With equally many computed tokens, LeVJEPA is better with tokens
#           of single frames than of two frames (arXiv 2608.27395, levjepa.github.io: 50.7 % against
#           47.4 % on ImageNet, 30.4 % against 28.8 % on Something-Something v2).
# Run:      python tools/train.py configs/lejepa/lejepa_vit_frames_folder_small.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/videos
# Test:     python tools/test.py configs/lejepa/lejepa_vit_frames_folder_small.py CHECKPOINT \
#               --cfg-options test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
# Hardware: 2 CPU cores, 4 GB; 2000 steps for up to 320 videos.
# Expected: not measured yet.

_base_ = "lejepa_vit_folder_small.py"

# This keeps 13 of 256 tokens. keep_tokens=0.025 computes as many as lejepa_vit_folder_small.py.
model = dict(backbone=dict(tubelet_size=1, grid_size=(4, 8, 8)))
