"""Networks for other runtimes; features with paths, labels and a map as viewer files."""
