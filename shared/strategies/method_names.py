"""The built-in methods: the name that a scenario uses, which is that of the module, and its class.

An idle device reads the names; nothing is imported for them.
"""

from covey.shared import extras

METHODS = {
    "cfl": "Cfl",
    "ditto": "Ditto",
    "fedavg": "FedAvg",
    "fedbabu": "FedBabu",
    "fedbn": "FedBn",
    "fedclust": "FedClust",
    "feddane": "FedDane",
    "feddist": "FedDist",
    "feddws": "FedDws",
    "fedem": "FedEm",
    "fednova": "FedNova",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "fedsgd": "FedSgd",
    "fedsoft": "FedSoft",
    "fesem": "Fesem",
    "fesem_ma": "FesemMa",
    "fuzzy": "Fuzzy",
    "given": "Given",
    "ifca": "Ifca",
    "lg": "LgFedAvg",
    "local": "LocalOnly",
    "pacfl": "Pacfl",
    "perfedavg": "PerFedAvg",
    "robust": "Robust",
    "scaffold": "Scaffold",
}

SECOND_NAMES = {"hypocluster": "ifca"}  # of the same class


def places() -> dict[str, tuple[str, str]]:
    """Module and class of each method, by name: those of the core, and those that extras bring."""
    found = {name: (f"covey.shared.strategies.{name}", kind) for name, kind in METHODS.items()}
    for name, (extra, kind) in extras.brought("METHODS").items():
        found[name] = (f"{extras.PACKAGE}.{extra}.{name}", kind)
    return dict(sorted(found.items()))
