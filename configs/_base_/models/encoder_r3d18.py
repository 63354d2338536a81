# ResNet3D-18 (tab:r3d), used for its representation.
model = dict(type="Encoder", backbone=dict(type="ResNet3dSlowPath", depth=18, channels_last=False))
data_preprocessor = dict(type="VideoDataPreprocessor")
