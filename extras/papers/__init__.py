"""Six methods of recent papers: Clove, FedALA, FedDBE, FedGWC, Feroma, FLUX."""
