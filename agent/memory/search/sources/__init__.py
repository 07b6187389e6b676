"""What there is to find in a scope, as units: conversations message by message, papers paragraph by paragraph."""
