"""The modes of evaluation: which model an agent is tested with.

server: the served model. tuned: the same after fine-tuning. last: the agent's own model after its latest training.
"""

from __future__ import annotations

REPORTED_MODES = ("server", "tuned", "last")  # those that an agent evaluates
KEPT_MODES = (
    *REPORTED_MODES,
    "best",
)  # with the best model that was tracked; E-global is the micro "server"
MODE_TITLES = {"server": "E-server", "tuned": "E-tuned", "last": "E-last"}  # in the order of tables
