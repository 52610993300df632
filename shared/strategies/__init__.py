"""The methods: one file each, what they share in `bases`, their union in `registry`."""
