# Two views, both strong-alpha (tab:augmentations): colour jitter p 0.8 with
# brightness 0.4, contrast 0.4, saturation 0.2, hue 0.1; grey p 0.2; blur p 1.0; flip p 0.5.
# BYOL's first view. strength=1.0 doubles the four colour numbers.
data_preprocessor = dict(
    type="VideoDataPreprocessor",
    views=[
        dict(name="strong-alpha", strength=0.5),
        dict(name="strong-alpha", strength=0.5),
    ],
)
