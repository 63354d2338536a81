# Shared settings of the pretraining recipes on CIFAR100. They equal the settings of
# CIFAR10, but with the 100 fine labels.
# The statistics come from juliendenize/eztorch, transforms/utils.py (CIFAR100's own std is .2673
# .2564 .2762).
_base_ = "./cifar10.py"

benchmark = dict(dataset="cifar100")
data_preprocessor = dict(mean=(0.5071, 0.4865, 0.4409), std=(0.2009, 0.1984, 0.2023))
_cifar100 = dict(name="cifar100", data_root="data/cifar100")
train_dataloader = dict(dataset=_cifar100)
test_dataloader = dict(dataset=_cifar100)
test_cfg = dict(gallery_dataloader=dict(dataset=_cifar100))
default_hooks = dict(
    online_evaluation=dict(gallery=dict(dataset=_cifar100), queries=dict(dataset=_cifar100))
)
