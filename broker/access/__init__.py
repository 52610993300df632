"""Access to the broker: users, passwords, rules and certificates."""
