# Many-shot linear transfer: features of ResNet-50, 224x224 images (short side 224, bicubic).
# Paper:    tab:many-shot; images and classifier as in linusericsson/ssl-transfer, linear.py.
# Run:      sce-video embed data/transfer/DTD \
#               --config configs/downstream/transfer/r50_many_shot.py --checkpoint CHECKPOINT \
#               --ann-file data/transfer/DTD/lists/train.txt --out work_dirs/dtd_train.npz
#           the same for val.txt (where there is one) and test.txt, then sce-video transfer linear;
#           all commands: docs/transfer.md.
# Hardware: 1 GPU of 8 GB, or a CPU.
# Expected: mean of the eleven sets 80.4 (SCE, multi-crop, 200 epochs); each in docs/transfer.md.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/transfer.py",
    "../../_base_/models/encoder_r50.py",
]

benchmark = dict(
    protocol="many_shot", network="r50_2d", frames=1, size=224, pretrained_on="imagenet"
)  # sce-video transfer adds the dataset

test_dataloader = dict(
    dataset=dict(
        pipeline=[
            dict(type="LoadImage", num_views=1),
            dict(type="PillowResizeCenterCrop", size=224, crop=224, interpolation="bicubic"),
            dict(type="PackClips"),
        ]
    )
)
