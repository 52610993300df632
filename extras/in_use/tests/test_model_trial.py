"""Models as people write them: what needs `in_use`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import save_file

from covey.extras.in_use.program import export
from covey.shared.numerics.split import Split
from covey.shared.strategies.client_half import Drill
from tests.agent.test_learner import data_of
from tests.agent.test_model_trial import ALLOWED, local_of, task_of
from tests.agent.test_model_trial import nets as nets

pytestmark = pytest.mark.usefixtures("single_thread", "nets")


@pytest.mark.parametrize("name", ["Tied", "Masked", "Places", "Frozen"])
def test_an_exported_program_gives_what_the_model_gives(name: str, tmp_path: Path) -> None:
    local, start, layout = local_of(name)
    trained = Split.by_patterns(layout, (), (), ()).trains
    end = local.train(start, Drill(trained=trained)).end
    facts = {"task": task_of(name).for_agents()}
    file = tmp_path / "cluster-0.safetensors"
    save_file(dict(layout.named(end)), file, metadata={"facts": json.dumps(facts)})
    export(file, tmp_path / "model.pt2", ALLOWED)
    program = torch.export.load(tmp_path / "model.pt2").module()
    features = data_of(task_of(name), n=11).test_features
    outputs = program(torch.from_numpy(features)).detach().numpy()
    assert np.allclose(outputs, local.predict(end, "test"), atol=1e-5)
