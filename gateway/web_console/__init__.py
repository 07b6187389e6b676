"""The console: the operator API for a browser, over the logins of the page, with a role check on every call."""
