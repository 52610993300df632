"""Six methods of recent papers: Clove, FedALA, FedDBE, FedGWC, Feroma, FLUX."""

METHODS = {
    "clove": "Clove",
    "fedala": "FedAla",
    "feddbe": "FedDbe",
    "fedgwc": "FedGwc",
    "feroma": "Feroma",
    "flux": "Flux",
}
