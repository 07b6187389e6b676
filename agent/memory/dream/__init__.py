"""Dream: the scheduled job that turns history entries into small edits of the documents ([003])."""
