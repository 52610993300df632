"""Runs as their operator sees them: their agents, the list of them, what pages show of one, and commands to one at work."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "coordinator status": CommandEntry("status:status", "List a run's agents"),
    "coordinator stop": CommandEntry("control:stop", "Stop the running coordinator"),
    "coordinator ls": CommandEntry("run_list:list_runs", "List the runs in a folder"),
    "coordinator prune": CommandEntry("run_list:prune", "Remove the folders of old runs"),
    "coordinator lab forget": CommandEntry("control:forget", "Remove an agent from the run"),
    "coordinator lab pause": CommandEntry("control:pause", "Pause the running coordinator"),
    "coordinator lab release": CommandEntry("control:release", "Release an agent from quarantine"),
    "coordinator lab resume": CommandEntry("control:resume", "Continue after a pause"),
}
