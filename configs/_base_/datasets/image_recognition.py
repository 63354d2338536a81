# Shared settings of all classification datasets of images. They equal the settings of videos, with
# larger batches because an image is one view. The test split is validated only for its curve, and
# the last checkpoint is the result. A child sets dataset and normalisation, and recipes add the
# pipelines.
_base_ = "./recognition.py"

split = None
data_preprocessor = dict(
    type="RecognizerDataPreprocessor",
    views=[dict(name="weak")],  # flip with p 0.5; the pipeline crops
)
val_dataloader = dict(batch_size=64)
test_dataloader = dict(batch_size=64)
