# Pretraining on STL10: two random resized crops to the size of the images (area 0.2 to 1, aspect
# 3/4 to 4/3; paper, appendix D.1). Evaluation uses the image without changes.
train_pipeline = [
    dict(type="LoadImage", num_views=2),
    dict(type="RandomResizedCropClips", size=96, area=(0.2, 1.0)),
    dict(type="PackClips"),
]
evaluation_pipeline = [dict(type="LoadImage", num_views=1), dict(type="PackClips")]
