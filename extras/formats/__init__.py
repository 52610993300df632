"""Folders of images and sounds, and images in Parquet files."""

# data sets whose arrays are no samples in order, by name what reads them; the file has the name of the function
DATA_SETS = {"har": "published:har", "mnist-writer": "published:mnist_writer"}
