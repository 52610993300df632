"""The built-in methods: the name that a scenario uses, which is that of the module, and its class.

An idle device reads the names; nothing is imported for them.
"""

METHODS = {
    "cfl": "Cfl",
    "clove": "Clove",
    "ditto": "Ditto",
    "fedala": "FedAla",
    "fedavg": "FedAvg",
    "fedbabu": "FedBabu",
    "fedbn": "FedBn",
    "fedclust": "FedClust",
    "feddane": "FedDane",
    "feddbe": "FedDbe",
    "feddist": "FedDist",
    "feddws": "FedDws",
    "fedem": "FedEm",
    "fedgwc": "FedGwc",
    "fednova": "FedNova",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "fedsgd": "FedSgd",
    "fedsoft": "FedSoft",
    "feroma": "Feroma",
    "fesem": "Fesem",
    "fesem_ma": "FesemMa",
    "flux": "Flux",
    "fuzzy": "Fuzzy",
    "given": "Given",
    "ifca": "Ifca",
    "kin": "Kin",
    "lg": "LgFedAvg",
    "local": "LocalOnly",
    "pacfl": "Pacfl",
    "perfedavg": "PerFedAvg",
    "robust": "Robust",
    "scaffold": "Scaffold",
}

# the extra that has a method; those that are not here are the core's
OF_EXTRAS = {
    "clove": "papers",
    "fedala": "papers",
    "feddbe": "papers",
    "fedgwc": "papers",
    "feroma": "papers",
    "flux": "papers",
    "kin": "groups",
}

SECOND_NAMES = {"hypocluster": "ifca"}  # of the same class
