"""The workspace: the files that a scope's conversations write and read, within `<scope>/files/` alone."""
