"""The store's ports: one set of rules in SQL, over an engine.

``database`` is an engine as the rules see it; ``sqlite`` and ``postgres`` are the engines, each with a function that
opens a store. ``inbox``, ``session_queue``, ``turn_commits`` and others are functions of a database with all rules.
``journal``, ``outbox``, ``records``, ``jobs`` and ``usage`` are the ports over them. ``writer`` runs them, and
``sql_store`` assembles a store. ``migrations`` has the tables. The caller that opens a store closes it.
"""
