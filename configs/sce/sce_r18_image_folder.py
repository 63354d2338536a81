# SCE, ResNet-18 (2-D), 224x224 images, on a folder of your own images, without labels.
# Paper: none. Objective, heads and views are as in tab:sota (strong-alpha, strong-beta, predictor),
#        with an optimiser for short runs. An image is a clip of one frame.
# Run:      python tools/train.py configs/sce/sce_r18_image_folder.py \
#               --cfg-options train_dataloader.dataset.data_root=/path/to/images
# Test:     python tools/test.py configs/sce/sce_r18_image_folder.py CHECKPOINT --cfg-options \
#               test_dataloader.dataset.data_root=/path/to/labelled \
#               test_cfg.gallery_dataloader.dataset.data_root=/path/to/other/labelled
#           on videos, frame by frame: the same with configs/sce/sce_r18_frames_folder.py
# Hardware: 1 GPU of 12 GB with --amp. With a smaller GPU or none, lower
#           train_dataloader.batch_size, model.backbone.base_channels and the sizes in the
#           pipeline. For images of 32 to 96 pixels, set model.backbone.stem=small.
# Expected: depends on the images; not measured yet.

_base_ = "./sce_r3d18_folder.py"

model = dict(backbone=dict(_delete_=True, type="ResNet2d", depth=18))
# ImageNet's statistics.
data_preprocessor = dict(
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    views=[dict(name="strong-alpha", strength=0.5), dict(name="strong-beta", strength=0.5)],
)

train_dataloader = dict(
    batch_size=64,
    dataset=dict(
        type="ImageDataset",
        data_root="data/images",
        pipeline=[
            dict(type="LoadImage", num_views=2, reduced=True),
            dict(type="RandomResizedCropClips", size=224, area=(0.2, 1.0)),
            dict(type="PackClips"),
        ],
    ),
)

evaluation_pipeline = [
    dict(type="LoadImage", num_views=1, resize="pil"),
    dict(type="ResizeShortSide", size=256),
    dict(type="CenterCropClips", size=224),
    dict(type="PackClips"),
]
test_dataloader = dict(
    batch_size=16,
    dataset=dict(type="ImageDataset", data_root="data/images_test", pipeline=evaluation_pipeline),
)
test_cfg = dict(
    gallery_dataloader=dict(
        batch_size=16,
        dataset=dict(
            type="ImageDataset", data_root="data/images_train", pipeline=evaluation_pipeline
        ),
    )
)
