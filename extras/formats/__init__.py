"""Folders of images and sounds, and images in Parquet files."""
