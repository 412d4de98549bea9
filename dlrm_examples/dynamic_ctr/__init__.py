"""Training of click and long-view prediction in time order, while new ids keep arriving."""
