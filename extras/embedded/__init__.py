"""The embedded broker: MQTT 3.1.1 in pure Python."""
