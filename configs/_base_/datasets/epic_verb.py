# EPIC-KITCHENS-100 as prepared by sce-video prepare epic_kitchens: verbs; tested on the validation
# set, since the test set has no labels. Nouns and actions have lists of their own.
_base_ = "./recognition.py"

split = None
train_dataloader = dict(dataset=dict(data_root="data/epic", ann_file="data/epic/train_verb.txt"))
val_dataloader = dict(dataset=dict(data_root="data/epic", ann_file="data/epic/val_verb.txt"))
test_dataloader = dict(dataset=dict(data_root="data/epic", ann_file="data/epic/val_verb.txt"))
