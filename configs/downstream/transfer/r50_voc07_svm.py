# Low-shot SVMs on VOC2007: features of ResNet-50, 224x224 images (short side 256, bilinear).
# Paper:    tab:low-shot-voc; images and classifier as in salesforce/PCL, eval_svm_voc.py.
# Run:      sce-video embed data/transfer/VOC2007 \
#               --config configs/downstream/transfer/r50_voc07_svm.py --checkpoint CHECKPOINT \
#               --ann-file data/transfer/VOC2007/lists/train.txt --out work_dirs/svm_train.npz
#           the same for val.txt and test.txt, then sce-video transfer svm: docs/transfer.md.
# Hardware: 1 GPU of 8 GB, or a CPU.
# Expected: mAP 79.47, 83.05, 85.47 with 16, 32, 64 images per class, 88.24 with all of trainval.

_base_ = [
    "../../_base_/default_runtime.py",
    "../../_base_/datasets/transfer.py",
    "../../_base_/models/encoder_r50.py",
]

benchmark = dict(
    protocol="low_shot_svm", network="r50_2d", frames=1, size=224, pretrained_on="imagenet"
)  # sce-video transfer adds the dataset

test_dataloader = dict(
    dataset=dict(
        pipeline=[
            dict(type="LoadImage", num_views=1),
            dict(type="PillowResizeCenterCrop", size=256, crop=224, interpolation="bilinear"),
            dict(type="PackClips"),
        ]
    )
)
