"""A package outside of Covey that adds a method, a model and a data source."""
