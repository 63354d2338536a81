"""Know a set of videos before training on it: near-duplicates, outliers, clusters, a subset."""
