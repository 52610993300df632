"""One run: folds reports, keeps its folder and its checkpoints."""
