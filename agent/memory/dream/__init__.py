"""Dream: what was summarised becomes lasting knowledge, by the smallest edits ([003])."""
