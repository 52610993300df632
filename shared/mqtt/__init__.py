"""The link to a broker: addresses, credentials, connections."""
