"""Several accounts, one person: joining what two scopes remember, and taking it apart again (docs/adr/0011)."""
