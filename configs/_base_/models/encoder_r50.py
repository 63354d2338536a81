# ResNet-50 of images (tab:sota), used for its representation; ImageNet's statistics.
model = dict(type="Encoder", backbone=dict(type="ResNet2d", depth=50))
data_preprocessor = dict(
    type="VideoDataPreprocessor", mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225)
)
