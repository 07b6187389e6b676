"""What a turn costs. Run by `make bench`; prints what it measured and judges nothing."""
