"""Programs that run one rank of a torch benchmark."""
