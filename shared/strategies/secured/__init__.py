"""A method whose updates are summed under masks: the phases of a secure sum around the phase of the method itself.

    secure-box -> secure-join -> the method's phase -> secure-unmask

The coordinator asks for boxes, then for joins, then for the method's own work, whose vectors come masked, then for answers
(docs/secure-sums.md). Each of these is a phase like any other: orders carry lists and cells as contents, reports carry
joins, heads and answers, and the state is in the checkpoint before the next order is sent. The last phase ends the round.

`coordinator.py` plans these phases and folds them, `agent.py` does their work, `phases.py` has what both know of them.
"""
