"""Access at run time: owners' decisions, pairing, owner claims, usage caps, and explanations of rejected messages."""
