"""What a run keeps on disk: arrays, reports, checkpoints, versions of models. Nothing here knows a round."""
