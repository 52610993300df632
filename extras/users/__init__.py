"""The users of a broker with TLS: its folder, their credentials and its certificates."""

from covey.shared.commands import CommandEntry

COMMANDS = {
    "broker init": CommandEntry(
        "commands:init", "Make the folder of a broker with TLS", before="doctor"
    ),
    "broker enroll": CommandEntry(
        "commands:enroll", "Add users; write their credentials", before="doctor"
    ),
    "broker expel": CommandEntry(
        "commands:expel", "Revoke the credentials of agents", before="doctor"
    ),
    "broker list": CommandEntry(
        "commands:list_users", "List users, and who is online", before="doctor"
    ),
    "broker lab renew": CommandEntry("commands:renew", "Replace the broker's certificate"),
    "broker lab rotate": CommandEntry("commands:rotate", "Replace the credentials of users"),
    "broker lab sign": CommandEntry("commands:sign", "Sign entries for secure sums again"),
}
