"""The paper's numbers, the recipes that reproduce them, and the published sizes of data sets."""
