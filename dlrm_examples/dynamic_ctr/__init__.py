"""Training of click and long-view prediction in time order, where ids never seen before arrive all the time."""
