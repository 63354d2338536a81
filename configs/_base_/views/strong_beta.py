# Two views, both strong-beta (tab:augmentations): colour jitter p 0.8 with
# brightness 0.4, contrast 0.4, saturation 0.2, hue 0.1; grey p 0.2; blur p 0.1; solarise p 0.2;
# flip p 0.5. BYOL's second view. strength=1.0 doubles the four colour numbers.
data_preprocessor = dict(
    type="VideoDataPreprocessor",
    views=[
        dict(name="strong-beta", strength=0.5),
        dict(name="strong-beta", strength=0.5),
    ],
)
