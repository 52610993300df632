"""One run: engine, method, disk, fold and record put together; orders, and what a run remembers."""
