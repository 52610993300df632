"""Covey: clustered, personalised federated learning on fleets of devices, over MQTT."""
