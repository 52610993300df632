# %% [markdown]
# Compare methods from Python
#
# Open this file as a notebook (Jupyter and most editors show each `# %%` as a cell), or run it as a script. It trains
# four simulated agents on the digits that come with scikit-learn, which takes half a minute.

# %%
import tempfile
from pathlib import Path

import covey

folder = Path(tempfile.mkdtemp(prefix="covey-example-"))

# %% [markdown]
# A scenario is what a YAML file holds: the task, how agents train, the method, the rounds and a simulated fleet. Half of
# these agents have the digits 0 to 4, the others 5 to 9.

# %%
scenario = {
    "name": "first-comparison",
    "seed": 1,
    "task": {
        "features": [1, 8, 8],
        "classes": 10,
        "scale": 0.0625,  # pixels are 0 to 16
        "model": {"name": "mlp", "options": {"hidden": 32}},
    },
    "training": {"epochs": 2, "batch": 10, "lr": 0.1},
    "strategy": {"name": "fedclust"},
    "rounds": {"count": 3},
    "fleet": {
        "agents": 4,
        "data": "digits",
        "partition": {"name": "grouped_labels", "groups": 2},
        "workers": 1,  # processes that train; omit for one per core, which pays off for larger models
    },
}

# %% [markdown]
# One run. Its folder keeps the models, the records and a checkpoint; `coordinator report FOLDER` shows it too.

# %%
result = covey.run(scenario, folder / "run")
print(result)
print("clusters found:", result.assignment)

# %% [markdown]
# `history()` and `agents()` give rows with plain columns: `pandas.DataFrame(result.history())` is a table.

# %%
for row in result.history():
    if row["phase"] == "train":
        print(f"round {row['round']}: loss {row['loss']:.3f}")

# %% [markdown]
# A comparison runs several methods on the same fleet, each on several seeds. The same call continues it if it was interrupted.

# %%
scenario["compare"] = {
    "methods": [{"name": "fedavg"}, {"name": "ifca", "n_clusters": 2}, {"name": "fedclust"}],
    "seeds": [1, 2],
}
comparison = covey.compare(scenario, folder / "comparison")
for row in comparison.methods:
    mean = 100 * row["server_accuracy_macro"]
    print(f"{row['method']:10} served {mean:5.1f} %")
