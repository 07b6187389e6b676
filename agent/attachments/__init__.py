"""Files that people send and are sent: fetched, read in a child with limits, told to the model as facts."""
