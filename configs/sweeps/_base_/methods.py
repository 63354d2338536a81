# Names of the methods, and the settings of each that toy_tuning.py chose, for the sweeps that
# compare them.
_titles = dict(
    sce="SCE",
    byol="BYOL",
    moco_v3="MoCo v3",
    simclr="SimCLR",
    swav="SwAV",
    lejepa="LeJEPA",
    moco="MoCo v2",
    ressl="ReSSL",
)
_momentum = "custom_hooks.ScheduleHook.model.momentum.start"
_rate = "optim_wrapper.optimizer.lr"
_chosen = dict(
    sce={_rate: 1e-3},
    byol={_momentum: 0.9},
    moco_v3={_momentum: 0.9},
    simclr={},
    swav={},
    lejepa={"model.lambda_": 0.1},
    moco={_momentum: 0.9},
    ressl={"model.tau_m": 0.05},
)
