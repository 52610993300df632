"""From descriptions of devices' data to a scenario that fits them. Pure, without numpy: the data itself is read elsewhere."""
