"""Imported by the processes of a training: their networks have float64 weights.

Two sums of the same numbers in another order then differ by 1e-16 and not by 1e-7, which a few
steps through batch norm over four samples may amplify a thousandfold, on some processors more.
"""

import torch

torch.set_default_dtype(torch.float64)
