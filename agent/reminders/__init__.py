"""Reminders and schedules: durable jobs that a person sets in a chat, fired once each."""
