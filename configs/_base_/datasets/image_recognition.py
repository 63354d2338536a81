# Settings that all classification data sets of images share: those of videos with larger batches,
# since an image is one view. The test split is validated for its curve; the last checkpoint is the
# result. A child sets data set and normalisation, recipes add the pipelines.
_base_ = "./recognition.py"

split = None
data_preprocessor = dict(
    type="RecognizerDataPreprocessor",
    views=[dict(name="weak")],  # flip p 0.5; the crop is a step of the pipeline
)
val_dataloader = dict(batch_size=64)
test_dataloader = dict(batch_size=64)
