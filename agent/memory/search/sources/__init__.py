"""Sources of search units: conversations by message, documents by paragraph."""
