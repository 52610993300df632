"""Who may do what: accounts, rules, certificates."""
