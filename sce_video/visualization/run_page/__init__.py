"""The page of a training run, and of several runs beside each other: data to HTML."""
