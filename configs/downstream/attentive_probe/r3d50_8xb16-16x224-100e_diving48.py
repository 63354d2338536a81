# Attentive probes on Diving48: ResNet3D-50, 16 frames at 224x224, the backbone frozen.
# Paper:    none for this encoder. The protocol is V-JEPA 2's (facebookresearch/vjepa2,
#           configs/eval/vitl/diving48.yaml): weight decay 0.8, three rates, 100 epochs, a batch of
#           128. It has 89.0 with ViT-L/16, 32 frames at 256, tokens of four layers and probes of
#           depth 4 on 4 clips x 3 crops (README.md there). Here frames are spread over the video
#           as on SSv2.
# Data:     lists of `sce-video prepare diving48`: test.txt, and train.txt divided into fit.txt
#           and select.txt (every 20th line), as in r3d50_8xb32-8x224-20e_k400.py.
# Run:      bash tools/dist_train.sh \
#               configs/downstream/attentive_probe/r3d50_8xb16-16x224-100e_diving48.py 8 \
#               --pretrained work_dirs/sce_r3d50_16xb32-16x224-200e_k400/epoch_200.pth
# Test:     bash tools/dist_test.sh \
#               configs/downstream/attentive_probe/r3d50_8xb16-16x224-100e_diving48.py \
#               work_dirs/r3d50_8xb16-16x224-100e_diving48/epoch_100.pth 8
# Hardware: 8 GPUs x 16 videos = global batch 128; the backbone needs no gradients.
# Expected: no published number for this encoder.

_base_ = "./r3d50_8xb32-16x224-20e_ssv2.py"

benchmark = dict(dataset="diving48")
model = dict(
    cls_head=dict(num_classes=48, lrs=(1e-3, 3e-4, 1e-4), weight_decays=(0.8,)),
)
_root = dict(data_root="data/diving48")
train_dataloader = dict(batch_size=16, dataset=dict(ann_file="data/diving48/fit.txt", **_root))
val_dataloader = dict(dataset=dict(ann_file="data/diving48/select.txt", **_root))
test_dataloader = dict(dataset=dict(ann_file="data/diving48/test.txt", **_root))
test_cfg = dict(
    selection_dataloader=dict(dataset=dict(ann_file="data/diving48/select.txt", **_root))
)
train_cfg = dict(max_epochs=100, val_interval=20)
